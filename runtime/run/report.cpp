#include "runtime/run/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "runtime/run/chart.h"
#include "runtime/run/report_page.h"

namespace glim {
namespace {

constexpr size_t kMaxEvents = 400;
constexpr std::string_view kCurves[] = {
    "loss", "token_accuracy", "learning_rate", "gradient_norm", "validation_loss", "validation_token_accuracy", "tokens_per_second"};

std::string in_bytes(double bytes) {
  return bytes < 1048576      ? fmt::format("{:.1f} KiB", bytes / 1024)
         : bytes < 1073741824 ? fmt::format("{:.1f} MiB", bytes / 1048576)
                              : fmt::format("{:.2f} GiB", bytes / 1073741824);
}

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole / 60 % 60);
}

// Which ops a program consists of, by the work that they do.
std::string program_table(const Program& program) {
  struct Work {
    int64_t nodes = 0;
    double flops = 0, bytes = 0;
  };
  const Graph& graph = program.graph;
  std::map<std::string_view, Work> ops;
  Work total;
  for (uint32_t n = 0; n < graph.num_nodes(); ++n) {
    if (graph.node({n}).op == kLeafOp) continue;
    const Cost cost = graph.cost({n});
    for (Work* work : {&ops[graph.def({n}).name], &total}) {
      ++work->nodes;
      work->flops += cost.flops;
      work->bytes += cost.bytes_read + cost.bytes_written;
    }
  }
  std::vector<std::pair<std::string_view, Work>> rows(ops.begin(), ops.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.second.flops > b.second.flops; });
  std::string html = fmt::format(
      "<details class=card><summary><b>{}</b>: {} nodes, {} FLOP, {} moved, {} of "
      "workspace</summary><table><tr><th>op<th>nodes<th>FLOP<th>bytes "
      "moved<th class=text>share of the FLOPs</tr>",
      escape_html(program.name), total.nodes, short_number(total.flops), in_bytes(total.bytes),
      in_bytes(static_cast<double>(program.plan.arena_bytes[static_cast<size_t>(Arena::kWorkspace)])));
  for (const auto& [name, work] : rows) {
    const double share = total.flops > 0 ? work.flops / total.flops : 0;
    html += fmt::format("<tr><td>{}<td>{}<td>{}<td>{}<td class=text><i class=share style=\"width:{:.1f}px\"></i> {:.1f} %</tr>", name,
                        work.nodes, short_number(work.flops), in_bytes(work.bytes), share * 240, share * 100);
  }
  return html + "</table></details>\n";
}

std::string memory_table(const CompiledModel& compiled) {
  const std::array<size_t, kNumArenas> bytes = compiled.arena_bytes();
  double total = 0;
  for (const size_t each : bytes) total += static_cast<double>(each);
  std::string html = "<div class=card><table><tr><th>arena<th>bytes<th class=text>share</tr>";
  for (size_t a = 0; a < kNumArenas; ++a) {
    if (bytes[a] == 0) continue;
    const double share = static_cast<double>(bytes[a]) / total;
    html += fmt::format("<tr><td>{}<td>{}<td class=text><i class=share style=\"width:{:.1f}px\"></i> {:.1f} %</tr>",
                        to_string(static_cast<Arena>(a)), in_bytes(static_cast<double>(bytes[a])), share * 240, share * 100);
  }
  return html + fmt::format("<tr><td><b>total</b><td>{}<td></tr></table></div>\n", in_bytes(total));
}

}  // namespace

RunReport::RunReport(Trainer& trainer) : title_(trainer.config().model), num_steps_(trainer.config().steps) {
  const CompiledModel& compiled = trainer.model().compiled();
  const TrainConfig& config = trainer.config();
  facts_ = fmt::format("{} parameters, {}, {} tokens &times; {} micro-step{} a step, {} rows an epoch, seed {}",
                       num_elements(compiled.parameters), to_string(config.dtype), config.tokens, config.micro_steps,
                       config.micro_steps == 1 ? "" : "s", trainer.data().num_rows(), config.seed);
  configuration_ = fmt::format("<div class=card><pre>{}</pre></div>\n", escape_html(config.source_text));
  for (const auto& program : compiled.programs) programs_ += program_table(*program);
  memory_ = memory_table(compiled);
}

void RunReport::add(const MetricsLine& line) {
  last_step_ = std::max(last_step_, line.step);
  if (!line.event.empty()) return add_event(line.step, line.event, line.text);
  for (const auto& [name, value] : line.numbers) {
    latest_[name] = value;
    if (std::find(std::begin(kCurves), std::end(kCurves), name) != std::end(kCurves))
      curves_[name].add(static_cast<double>(line.step), value);
  }
}

void RunReport::add(const StepMetrics& m) {
  MetricsLine line;
  line.step = m.step;
  line.numbers = {{"loss", m.loss},
                  {"token_accuracy", m.token_accuracy},
                  {"learning_rate", m.learning_rate},
                  {"gradient_norm", m.gradient_norm},
                  {"tokens_per_second", static_cast<double>(m.num_tokens) / m.seconds}};
  add(line);
}

void RunReport::add(int64_t step, const Evaluation& evaluation) {
  MetricsLine line;
  line.step = step;
  line.numbers = {{"validation_loss", evaluation.loss}, {"validation_token_accuracy", evaluation.token_accuracy}};
  add(line);
}

void RunReport::add_event(int64_t step, std::string_view event, std::string_view text) {
  if (events_.size() == kMaxEvents) {
    events_.erase(events_.begin());
    ++num_events_left_out_;
  }
  events_.push_back({step, std::string(event), std::string(text)});
}

std::string RunReport::html(std::string_view status, const Progress& progress) const {
  const auto latest = [&](std::string_view name, auto format) {
    const auto found = latest_.find(name);
    return found == latest_.end() ? std::string("–") : format(found->second);
  };
  const auto tile = [](std::string_view name, const std::string& value) {
    return fmt::format("<div class=tile><b>{}</b><span>{}</span></div>", value, name);
  };
  const auto percent = [](double value) { return fmt::format("{:.1f} %", 100 * value); };
  const auto points = [&](std::string_view name) {
    const auto found = curves_.find(name);
    return found == curves_.end() ? std::vector<CurvePoint>{} : found->second.points();
  };
  const auto pair = [&](std::string_view name, std::string_view validation) {
    std::vector<Series> series{{"training", points(name)}};
    if (curves_.contains(validation)) series.push_back({"validation", points(validation), true});
    return series;
  };
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char time[32];
  std::strftime(time, sizeof time, "%Y-%m-%d %H:%M:%S", &local);

  std::string page = fmt::format(
      "<!doctype html>\n<html lang=en><head><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">"
      "<title>glim: {}</title><style>{}</style></head><body><main>\n<h1>{}<span class=\"badge {}\">{}</span></h1><div "
      "class=soft>{}</div>\n",
      escape_html(title_), kReportStyle, escape_html(title_), escape_html(status.substr(0, status.find(' '))), escape_html(status), facts_);
  page += fmt::format("<div class=bar><i style=\"width:{:.1f}%\"></i></div><div class=soft>step {} of {}, {} elapsed{}, written {}</div>\n",
                      num_steps_ > 0 ? 100.0 * static_cast<double>(last_step_) / static_cast<double>(num_steps_) : 0.0, last_step_,
                      num_steps_, duration(progress.elapsed_seconds),
                      status == "running" ? fmt::format(", {} to go", duration(progress.remaining_seconds)) : "", time);
  page += "<div class=tiles>";
  page += tile("loss", latest("loss", [](double v) { return fmt::format("{:.4f}", v); }));
  page += tile("token accuracy", latest("token_accuracy", percent));
  page += tile("validation loss", latest("validation_loss", [](double v) { return fmt::format("{:.4f}", v); }));
  page += tile("validation accuracy", latest("validation_token_accuracy", percent));
  page += tile("gradient norm", latest("gradient_norm", short_number));
  page += tile("learning rate", latest("learning_rate", short_number));
  page += tile("tokens/s", short_number(progress.tokens_per_second));
  page += tile("FLOP/s", short_number(progress.flops_per_second));
  if (progress.mfu) page += tile("MFU", percent(*progress.mfu));
  page += tile("memory in use", in_bytes(static_cast<double>(progress.resident_bytes)));
  page += "</div>\n<div class=charts>\n";
  page += to_svg({"Loss", "nats per token", pair("loss", "validation_loss")});
  page += to_svg({"Token accuracy", "", pair("token_accuracy", "validation_token_accuracy")});
  page += to_svg({"Gradient norm", "before clipping", {{"gradient norm", points("gradient_norm")}}, true});
  page += to_svg({"Learning rate", "", {{"learning rate", points("learning_rate")}}, true});
  page += to_svg({"Throughput", "tokens per second", {{"tokens/s", points("tokens_per_second")}}, true});
  page += "</div>\n<h2>Events</h2>\n<div class=card><table><tr><th>step<th class=text>event<th class=text></tr>";
  if (num_events_left_out_ > 0) page += fmt::format("<tr><td><td class=text>({} older ones)<td></tr>", num_events_left_out_);
  for (const Event& event : events_)
    page += fmt::format("<tr><td>{}<td class=text>{}<td class=text>{}</tr>", event.step, escape_html(event.event), escape_html(event.text));
  page += fmt::format("</table></div>\n<h2>Configuration</h2>\n{}<h2>Memory plan</h2>\n{}<h2>Programs</h2>\n{}", configuration_, memory_,
                      programs_);
  return page + fmt::format("</main><script>{}</script></body></html>\n", kReportScript);
}

}  // namespace glim
