#include "runtime/step_trace.h"

#include <set>

#include <nlohmann/json.hpp>

namespace glim {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kProcess = 1;
constexpr const char* kTrackNames[] = {"programs", "compute", "communication"};

// Bytes of a step without an op: what it copies.
Cost cost_of(const Executable& executable, const BoundStep& step) {
  if (step.kind == BoundStep::Kind::kKernel) return executable.program().graph.cost(step.node);
  if (step.kind == BoundStep::Kind::kEvents) return {};
  const auto bytes = static_cast<double>(executable.inputs(step)[0].type.bytes());
  return {.bytes_read = bytes, .bytes_written = bytes};
}

Json named(const char* what, int track, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", kProcess}, {"tid", track}, {"args", {{"name", name}}}};
}

}  // namespace

Status StepTrace::run(Model& model, ProgramKind kind) {
  const Executable* executable = model.executable(kind);
  GLIM_CHECK(executable != nullptr, "the model was compiled without this program");
  const auto elapsed = [this] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); };
  std::vector<StepTime> times(executable->steps().size());
  const double start = elapsed();
  model.executor().set_profile(&times);
  const Status status = model.run(kind);
  model.executor().set_profile(nullptr);
  GLIM_TRY(status);
  const std::string program(to_string(kind));
  events_.push_back({program, program, kPrograms, {start, elapsed() - start}, {}});
  for (size_t k = 0; k < times.size(); ++k) {
    const BoundStep& step = executable->steps()[k];
    if (step.kind == BoundStep::Kind::kEvents) continue;
    events_.push_back({executable->describe(step),
                       program,
                       kStreams + static_cast<int>(step.stream),
                       {start + times[k].start, times[k].seconds},
                       cost_of(*executable, step)});
  }
  return ok();
}

std::string StepTrace::json() const {
  Json events = Json::array();
  events.push_back(named("process_name", kPrograms, title_));
  std::set<int> tracks;
  for (const Event& event : events_) tracks.insert(event.track);
  for (const int track : tracks) events.push_back(named("thread_name", track, kTrackNames[track]));
  for (const Event& event : events_) {
    Json args = Json::object();
    if (event.track != kPrograms) {
      args = {{"bytes", event.cost.bytes_read + event.cost.bytes_written}, {"flops", event.cost.flops}};
      if (event.time.seconds > 0) args["tflop_per_second"] = event.cost.flops / event.time.seconds / 1e12;
    }
    events.push_back({{"ph", "X"},
                      {"name", event.name},
                      {"cat", event.program},
                      {"pid", kProcess},
                      {"tid", event.track},
                      {"ts", event.time.start * 1e6},
                      {"dur", event.time.seconds * 1e6},
                      {"args", std::move(args)}});
  }
  const Json trace{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";  // a name of a model file need not be UTF-8
}

}  // namespace glim
