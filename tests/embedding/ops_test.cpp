// An op of the host's own: its gradient against finite differences, and everything that can be wrong with one.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "check.h"

namespace embedding {
namespace {

void test_gradient(const std::string& folder) {
  glim::LoadOptions options = own_options();
  options.dtype = glim::DType::kF64;
  glim::Model model = own_model(folder, options);
  const glim::Batch batch = counting_batch(2);
  take(model.compute_gradients(std::span(&batch, 1)));
  for (const char* name : {"layers.0.up.weight", "layers.1.up.weight", "embed.weight"}) {  // all lie before a snake
    const glim::Tensor gradient = take(model.gradient(name)), original = take(model.parameter(name));
    double error = 0, norm = 0;
    for (size_t i = 0; i < original.values<double>().size(); i += 13) {
      const auto loss_at = [&](double step) {
        std::vector<double> moved(original.values<double>().begin(), original.values<double>().end());
        moved[i] += step;
        take(model.set_parameter(name, glim::Tensor::of<double>(original.type.shape, moved)));
        return take(model.evaluate(std::span(&batch, 1))).loss;
      };
      const double numeric = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5, analytic = gradient.values<double>()[i];
      error += (numeric - analytic) * (numeric - analytic);
      norm += numeric * numeric;
    }
    take(model.set_parameter(name, original));
    EXPECT(norm > 1e-8 && std::sqrt(error / norm) < 1e-7);
  }
}

// snake written with built-in ops is no option (there is no sine), but its rule may be: 3 x as an op whose gradient is `scale`.
void test_rule_of_builtin_ops() {
  glim::Op tripled;
  tripled.name = "tripled";
  tripled.operands = {{"in"}};
  tripled.infer = same_as_first;
  tripled.kernel = [](const glim::KernelCall& call) { for_each_row(call, [](double x, double) { return 3 * x; }); };
  tripled.vjp = [](glim::GraphBuilder& graph, const glim::VjpCall& call) -> glim::Result<std::vector<glim::Value>> {
    EXPECT(graph.type(call.inputs[0]) == graph.type(call.cotangents[0]));
    return std::vector<glim::Value>{graph.emit("scale", {call.cotangents[0]}, {{"factor", 3.0}})};
  };
  const auto text = [](const std::string& op) {
    return "extends = \"muse_glimmer_tiny.toml\"\n[dims]\nvocab = 23\nhidden = 32\nnum_layers = 1\nnum_heads = 2\nnum_kv_heads = "
           "1\nhead_dim = 16\n"
           "[blocks.embed]\nops = [\n  { out = \"e\", op = \"embedding\", ids = \"tokens\", weight = \"table\" },\n  " +
           op + ",\n  { out = \"x\", op = \"add\", in = [\"e\", \"t\"] },\n]\n";
  };
  const glim::LoadOptions options{.tokens = 64, .segments = 4, .dtype = glim::DType::kF64, .ops = {tripled}};
  glim::Model own = take(glim::Model::load_text(text("{ out = \"t\", op = \"tripled\", in = \"e\" }"), options));
  glim::Model plain = take(glim::Model::load_text(text("{ out = \"t\", op = \"scale\", in = \"e\", factor = 3 }"), options));
  for (int step = 0; step < 3; ++step)
    EXPECT(take(own.train_step(counting_batch(step), 1e-2)).loss == take(plain.train_step(counting_batch(step), 1e-2)).loss);
  EXPECT(take(own.parameter("embed.table")).bytes == take(plain.parameter("embed.table")).bytes);
}

std::string load_error(const std::string& folder, const glim::LoadOptions& options) {
  const auto model = glim::Model::load(folder + "/model.toml", options);
  return model ? "it loads" : model.error().to_string();
}

void test_wrong_ops(const std::string& folder) {
  using Values = std::vector<glim::Value>;
  glim::LoadOptions options = own_options();
  glim::Op& op = options.ops[0];
  const glim::Op good = op;
  const auto with_rule = [&](auto rule) {
    op.vjp = rule;
    return load_error(folder, options);
  };
  EXPECT_HOLDS(with_rule([](glim::GraphBuilder& g, const glim::VjpCall& c) -> glim::Result<Values> {
                 return Values{g.emit("snake_gradd", {c.inputs[0], c.cotangents[0]})};
               }),
               "op 'snake': there is no op 'snake_gradd'; did you mean 'snake_grad'?");
  EXPECT_HOLDS(with_rule([](glim::GraphBuilder& g, const glim::VjpCall& c) -> glim::Result<Values> {
                 return Values{g.emit("snake_grad", {c.inputs[0], c.cotangents[0]}, {{"alfa", 1.0}, {"alpha", 1.0}})};
               }),
               "snake_grad: there is no attribute 'alfa'; did you mean 'alpha'?");
  EXPECT_HOLDS(with_rule([](glim::GraphBuilder&, const glim::VjpCall&) -> glim::Result<Values> { return Values{}; }),
               "0 cotangents for 1 operands");
  EXPECT_HOLDS(with_rule([](glim::GraphBuilder& g, const glim::VjpCall& c) -> glim::Result<Values> {
                 return Values{g.emit("cast", {c.cotangents[0]}, {{"to", std::string("f64")}})};
               }),
               "op 'snake':");
  EXPECT_HOLDS(with_rule([](glim::GraphBuilder&, const glim::VjpCall&) -> glim::Result<Values> { return Values{{123456789}}; }),
               "no value of this graph");
  EXPECT_HOLDS(with_rule([](glim::GraphBuilder&, const glim::VjpCall& c) -> glim::Result<Values> {
                 return Values{{static_cast<uint32_t>(c.attributes.integer("alpha"))}};
               }),
               "'alpha' of 'snake' is of another kind");
  EXPECT_HOLDS(with_rule(nullptr), "op 'snake'");  // has no vjp, but a gradient has to pass through it
  op = good;
  op.infer = [](const glim::OpTypes&) -> glim::Result<std::vector<glim::TensorType>> { throw std::runtime_error("thrown by the host"); };
  EXPECT_HOLDS(load_error(folder, options), "thrown by the host");
  op.infer = [](const glim::OpTypes&) -> glim::Result<std::vector<glim::TensorType>> { return std::vector<glim::TensorType>{}; };
  EXPECT_HOLDS(load_error(folder, options), "0 types for 1 outputs");
  op = good;
  options.dtype = glim::DType::kBF16;
  EXPECT_HOLDS(load_error(folder, options), "must be f32 or f64, not bf16");
  EXPECT_HOLDS(load_error(folder, options), "model.toml:");
  options.dtype = glim::DType::kF32;
  op.operands = {{"out"}};
  EXPECT_HOLDS(load_error(folder, options), "'out' cannot name an operand");
  op = good;
  op.kernel = nullptr;
  EXPECT_HOLDS(load_error(folder, options), "it has no kernel");
  op = good;
  op.name = "linear";
  EXPECT_HOLDS(load_error(folder, options), "'linear' is registered already");
  options.ops.clear();
  EXPECT_HOLDS(load_error(folder, options), "snake");

  // A kernel that fails, and one that throws on whatever thread it runs.
  options = own_options();
  options.ops[0].kernel = [](const glim::KernelCall& call) { call.fail("row 3 is wrong"); };
  glim::Model failing = own_model(folder, options);
  EXPECT_HOLDS(failing.train_step(counting_batch(0), 1e-2).error().message, "row 3 is wrong");
  options.ops[0].kernel = [](const glim::KernelCall& call) {
    std::atomic<int> started{0};
    call.parallel_for(2, [&](int64_t) {
      ++started;
      for (int wait = 0; started < 2 && wait < 5000; ++wait)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // one on each thread
      throw std::runtime_error("thrown by a task");
    });
  };
  glim::Model throwing = own_model(folder, options);
  EXPECT_HOLDS(throwing.train_step(counting_batch(0), 1e-2).error().message, "thrown by a task");
  EXPECT_HOLDS(throwing.train_step(counting_batch(0), 1e-2).error().message, "snake at decoder.0");
}

// A bug (here: a type inference that is no function) reaches the host's handler; the library itself prints nothing.
void test_bug_handler(const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    glim::set_bug_handler([](std::string_view report) { _exit(report.find("CHECK") != std::string_view::npos ? 42 : 1); });
    glim::LoadOptions options = own_options();
    int calls = 0;
    options.ops[0].infer = [&](const glim::OpTypes& types) -> glim::Result<std::vector<glim::TensorType>> {
      glim::TensorType type = *types.inputs[0];
      if (++calls > 2) type.dtype = glim::DType::kF64;
      return std::vector<glim::TensorType>{type};
    };
    (void)bool(glim::Model::load(folder + "/model.toml", options));
    _exit(2);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

}  // namespace

void test_ops(const std::string& folder) {
  test_gradient(folder);
  test_rule_of_builtin_ops();
  test_wrong_ops(folder);
  test_bug_handler(folder);
}

}  // namespace embedding
