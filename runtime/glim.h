#pragma once
// glim: define, train and run models as compute graphs, from a C++20 program. Installed as <glim/glim.h>; find_package(glim) gives
// glim::glim.
//
//   glim::Result<glim::Model> model = glim::Model::load("model.toml", {.tokens = 256, .segments = 8});
//   if (!model) return report(model.error().to_string());
//   for (int step = 0; step < 100; ++step) {
//     glim::Result<glim::StepResult> result = model->train_step({.documents = next_documents()}, 1e-3);
//     if (!result) return report(result.error().to_string());
//     std::cout << result->loss << ' ' << result->token_accuracy << '\n';
//   }
//
// Errors are values. The library never exits, never writes to stdout or stderr and installs no signal handler; log lines and bugs go to
// callbacks. No exception leaves it; what a callback throws comes back as an error.
// Threads: any number of models may be used at once, each by one thread at a time; only Model::cancel may be called from another one.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// Semantic versioning. Before 1.0.0, the same minor number means the same interface and the same binary interface.
#define GLIM_VERSION_MAJOR 0
#define GLIM_VERSION_MINOR 1
#define GLIM_VERSION_PATCH 0

#define GLIM_API __attribute__((visibility("default")))

namespace glim {
#ifdef GLIM_IMPLEMENTATION  // the library's own sources have other things by these names in glim
namespace v0 {
#else
inline namespace v0 {
#endif

// The version of the library that runs, "0.1.0"; the macros above say what was compiled against.
[[nodiscard]] GLIM_API const char* version();

// ---- errors

enum class ErrorCode : uint8_t {
  kInvalidArgument,  // configuration or arguments
  kInvalidFile,      // a file that does not hold what it should
  kOutOfMemory,
  kIo,
  kNumeric,
  kCommunication,
  kDevice,
  kCancelled,  // by Model::cancel
  kInternal,   // an exception that nobody expected
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInvalidArgument;
  std::string message;  // what is wrong, what was expected, and the nearest valid name
  std::string file;     // where it stands in a file; "" = nowhere
  int line = 0, column = 0;
  [[nodiscard]] GLIM_API std::string to_string() const;  // "file:line:column: message"
};

// A value or an error. Taking the value of an error throws std::bad_variant_access.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  [[nodiscard]] const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return !error_.has_value(); }
  [[nodiscard]] const Error& error() const { return error_.value(); }

 private:
  std::optional<Error> error_;
};
using Status = Result<void>;

// A broken promise of the library (never of your data) is reported here, and then the process aborts. For the whole process.
using BugHandler = void (*)(std::string_view report);
GLIM_API void set_bug_handler(BugHandler handler);  // nullptr: abort in silence

// ---- tensors

enum class DType : uint8_t { kF64, kF32, kBF16, kI64, kI32 };
[[nodiscard]] constexpr size_t size_of(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kI64 ? 8 : dtype == DType::kBF16 ? 2 : 4;
}
[[nodiscard]] GLIM_API std::string_view to_string(DType dtype);  // "f64", "f32", "bf16", "i64", "i32"

// At most 4 axes, row-major.
struct TensorType {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape{};
  [[nodiscard]] int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
  }
  friend bool operator==(const TensorType&, const TensorType&) = default;
};

// A tensor on the host, contiguous.
struct Tensor {
  TensorType type{};
  std::vector<std::byte> bytes{};

  template <class T>  // double, float, int64_t or int32_t
  static Tensor of(std::vector<int64_t> shape, std::span<const T> values) {
    const auto raw = std::as_bytes(values);
    return {{dtype_of<T>(), std::move(shape)}, {raw.begin(), raw.end()}};
  }
  // The elements; empty when T is not their type.
  template <class T>
  [[nodiscard]] std::span<const T> values() const {
    if (type.dtype != dtype_of<T>()) return {};
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  [[nodiscard]] GLIM_API double at(int64_t i) const;  // element i of any type; 0 past the end

  template <class T>
  [[nodiscard]] static constexpr DType dtype_of() {
    static_assert(std::is_same_v<T, double> || std::is_same_v<T, float> || std::is_same_v<T, int64_t> || std::is_same_v<T, int32_t>);
    if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 8 ? DType::kF64 : DType::kF32;
    return sizeof(T) == 8 ? DType::kI64 : DType::kI32;
  }
};

// ---- ops of your own

// An attribute of an op. Give numbers their type: 1.0 is a real, int64_t{1} or 1 an integer. Text is a choice of a built-in op.
using AttributeValue = std::variant<bool, int64_t, double, std::string>;
using AttributeValues = std::map<std::string, AttributeValue, std::less<>>;

// The attributes of one node. An unknown name, or one of another kind, throws std::out_of_range, which the library turns into an error.
class Attributes {
 public:
  Attributes(const void* op, const uint32_t* words) : op_(op), words_(words) {}
  [[nodiscard]] GLIM_API double real(std::string_view name) const;
  [[nodiscard]] GLIM_API int64_t integer(std::string_view name) const;
  [[nodiscard]] GLIM_API bool flag(std::string_view name) const;

 private:
  const void* op_;
  const uint32_t* words_;
};

// What type inference and cost see.
struct OpTypes {
  std::vector<std::optional<TensorType>> inputs;  // by operand; nothing where an optional one is absent
  std::vector<TensorType> outputs;                // of cost only
  Attributes attributes;
};

// A value of the graph that a gradient rule builds. An invalid one is a structural zero.
struct Value {
  uint32_t id = ~0U;
  [[nodiscard]] bool valid() const { return id != ~0U; }
};
// Appends nodes by the names of ops (`glim ops` lists them). The first thing that goes wrong is kept and becomes the error of Model::load;
// what is emitted after it is invalid, so a rule needs no checks.
class GraphBuilder {
 public:
  explicit GraphBuilder(void* state) : state_(state) {}
  // The first output, or all of them. `inputs` by operand position; an invalid value where an optional operand is absent.
  GLIM_API Value emit(std::string_view op, std::initializer_list<Value> inputs, const AttributeValues& attributes = {});
  GLIM_API std::vector<Value> emit_all(std::string_view op, std::span<const Value> inputs, const AttributeValues& attributes = {});
  [[nodiscard]] GLIM_API TensorType type(Value value) const;

 private:
  void* state_;
};
struct VjpCall {
  std::span<const Value> inputs;      // primals by operand
  std::span<const Value> outputs;     // primals that the op made; reading one keeps it in memory
  std::span<const Value> cotangents;  // one per output, of its type; invalid = zero
  Attributes attributes;
};

// What a kernel sees of a tensor. Element (i, j) of the tensor seen as [rows(), width()] is row<T>(i)[j].
struct TensorView {
  void* data = nullptr;  // nullptr where an optional operand is absent
  DType dtype = DType::kF32;
  std::span<const int64_t> shape{};
  int64_t row_stride = 0;  // elements; may exceed the width of a tensor of 2 axes, any other is contiguous

  [[nodiscard]] int64_t width() const { return shape.empty() ? 1 : shape.back(); }
  [[nodiscard]] int64_t rows() const {
    int64_t count = 1;
    for (size_t axis = 0; axis + 1 < shape.size(); ++axis) count *= shape[axis];
    return count;
  }
  template <class T>
  [[nodiscard]] T* row(int64_t i) const {
    return static_cast<T*>(data) + i * row_stride;
  }
};
// One run of a kernel on the CPU: write every element of every output and nothing else. It may run on any thread of the caller's model, and
// gives the same bits whatever the number of threads.
struct KernelCall {
  std::span<const TensorView> inputs, outputs;
  std::span<std::byte> workspace;  // Cost::workspace_bytes, aligned to 256 bytes, contents undefined
  Attributes attributes;
  void* machine = nullptr;

  // Calls task(i) for every i in [0, num_tasks) on all threads, in any order; returns when all are done.
  template <class F>
  void parallel_for(int64_t num_tasks, F&& task) const {
    using Task = std::remove_reference_t<F>;
    run_tasks(
        num_tasks, [](void* object, int64_t i) { (*static_cast<Task*>(object))(i); },
        const_cast<void*>(static_cast<const void*>(std::addressof(task))));
  }
  // A value in the data is wrong: the program ends with this error. The first one wins.
  GLIM_API void fail(std::string_view message) const;
  GLIM_API void run_tasks(int64_t num_tasks, void (*task)(void*, int64_t), void* object) const;
};

struct Cost {
  double flops = 0;  // multiply and add counted as two
  size_t workspace_bytes = 0;
};
struct Operand {
  std::string name;
  bool optional = false;
};
struct Attribute {
  std::string name;
  AttributeValue default_value = 0.0;  // a number or a flag; says the kind
  bool required = false;               // a model file must give it
  std::string doc{};
};

// An op that model files may use by name once it is in LoadOptions::ops, which copies it. Several models may call its functions at once.
struct Op {
  std::string name;
  std::string summary{};               // the formula; for documentation
  std::vector<Operand> operands;       // 1 to 16
  std::vector<std::string> outputs{};  // 1 to 16 names; empty: "out"
  std::vector<Attribute> attributes{};
  // Types in, types out (one per output), or an error that says what the op expects. A pure function.
  std::function<Result<std::vector<TensorType>>(const OpTypes&)> infer{};
  // f32 and f64 at least, if the model shall run in both. See KernelCall.
  std::function<void(const KernelCall&)> kernel{};
  // Builds the gradient: one cotangent per operand, of the operand's type, invalid where it is zero. Absent: nothing can be trained through
  // the op. A rule that needs a kernel of its own emits a second op.
  std::function<Result<std::vector<Value>>(GraphBuilder&, const VjpCall&)> vjp{};
  std::function<Cost(const OpTypes&)> cost{};  // absent: one FLOP an element, no workspace
};

// ---- models

enum class LogLevel : uint8_t { kInfo, kWarning };
// How far a call is: done of total stages of "load" (read, compiled, filled), batches of "train_step", "compute_gradients" or
// "evaluate", or tokens of "generate".
struct Progress {
  std::string_view stage;
  int64_t done = 0, total = 0;
};

enum class Rematerialise : uint8_t { kNone, kSelective, kFull, kAuto };  // what the backward pass recomputes instead of keeping
struct AdamW {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double max_norm = 1;  // gradients are scaled down to this global norm; 0 = not
  // Of bf16 parameters: f32 copies that updates go to. false: updates are rounded stochastically, 4 bytes less a parameter.
  bool master_weights = true;
};

struct LoadOptions {
  int64_t tokens = 512;                            // T: tokens of one batch at most
  int64_t segments = 16;                           // G: documents of one batch at most
  std::map<std::string, int64_t> runtime_dims{};   // any other one of the model; R (rows whose logits are read) is 1 unless said
  std::vector<std::string> settings{};             // "name=value" for dims, constants and flags of the model file
  std::string weights{};                           // HF folder or .safetensors file; "" = those of the model's folder if it has some
  uint64_t seed = 1;                               // of the parameters when there are no weights
  DType dtype = DType::kF32;                       // of parameters and activations: f32, f64, or bf16 (f32 arithmetic)
  bool trainable = true;                           // false: forward only, no gradients or moments are held
  std::function<bool(std::string_view)> trains{};  // whether a parameter (by its own name) is trained; absent: all are
  std::vector<std::string> outputs{};              // of forward() besides loss, token_accuracy, num_correct and num_valid
  AdamW adamw{};
  Rematerialise rematerialise = Rematerialise::kNone;
  std::string backend = "cpu";  // or "cuda": a model with an op of your own runs on the CPU only
  int threads = 0;              // 0 = GLIM_NUM_THREADS, or every core; never changes a result
  std::vector<Op> ops{};
  std::function<void(LogLevel, std::string_view)> log{};  // on the calling thread, as the next one
  std::function<void(const Progress&)> progress{};
};

struct InputInfo {
  std::string name;
  TensorType type;           // i32, or a float type
  std::string derived_from;  // the host function that computes it when it is not given; "" = must be given
};
struct OutputInfo {
  std::string name;
  TensorType type;
};
struct ParameterInfo {
  std::string name;     // "decoder.3.q_proj"
  std::string hf_name;  // in a checkpoint; "" = the model file gives none
  TensorType type;
  bool trained = false;
};

// One document: token ids, and for each the label, as Hugging Face has them: not shifted, -100 = no target. Without labels, every token is
// one.
struct Document {
  std::vector<int32_t> tokens{};
  std::vector<int32_t> labels{};
};
// What one run of the model is given. Documents are packed one after another, never see each other, and give the inputs that are derived
// from them: segments, positions, targets. `integers` and `reals` set other inputs by name (or override a derived one).
struct Batch {
  std::vector<Document> documents{};
  std::map<std::string, std::vector<int32_t>, std::less<>> integers{};
  std::map<std::string, std::vector<double>, std::less<>> reals{};
};

// Over all valid targets of all batches of a call.
struct Metrics {
  double loss = 0;            // mean; 0 when there is no valid target
  double token_accuracy = 0;  // num_correct / num_valid; 0 when there is no valid target
  int64_t num_correct = 0, num_valid = 0;
};
struct StepResult : Metrics {
  double gradient_norm = 0;  // of all trained parameters together, before it is clipped
  bool skipped = false;      // the gradients were not finite: parameters, moments and step count stayed as they were
};

struct Sampling {
  double temperature = 0;       // 0 = greedy: the most likely token, on a tie the lowest id
  int64_t top_k = 0;            // only the k most likely tokens; 0 = all
  double top_p = 1;             // only the most likely tokens whose probabilities add up to this
  uint64_t seed = 1;            // the same seed and prompt give the same tokens
  std::vector<int32_t> stop{};  // generation ends after one of these
};

class ModelImpl;

// A model with its parameters, compiled for one bucket of tokens and segments. Nothing grows while it is used: memory is planned by load,
// and by the first generate of a length. Functions that fail leave parameters and optimizer as they were, unless
// they say otherwise.
class GLIM_API Model {
 public:
  // `model`: a TOML file, a Hugging Face folder or its config.json, or the name of a model that ships with glim. Errors of a file stand at
  // line and column.
  static Result<Model> load(const std::string& model, const LoadOptions& options = {});
  // The text of a TOML file. What it `extends` is looked for among the shipped models.
  static Result<Model> load_text(std::string_view toml, const LoadOptions& options = {});

  Model(Model&& other) noexcept;
  Model& operator=(Model&& other) noexcept;
  ~Model();

  [[nodiscard]] std::vector<InputInfo> inputs() const;
  [[nodiscard]] std::vector<OutputInfo> outputs() const;  // of forward()
  [[nodiscard]] std::vector<ParameterInfo> parameters() const;

  // Parameters. Names are the model's own or those of the checkpoint (also for tied ones).
  Status initialise(uint64_t seed);  // as the model file says; starts the optimizer anew
  // HF folder or .safetensors file, any float types; starts the optimizer anew. Names and shapes are checked before anything changes; a
  // value that does not fit its type is found on the way, and leaves the parameters before it loaded.
  Status load_weights(const std::string& path);
  [[nodiscard]] Result<Tensor> parameter(std::string_view name) const;
  // Same shape, any float type. Moments stay: see reset_optimizer.
  Status set_parameter(std::string_view name, const Tensor& value);
  Status reset_optimizer();  // moments and step count start at zero
  // Weights as a Hugging Face folder, which load() or LoadOptions::weights reads back bit by bit. There is a config.json when the model
  // file has [hf] model_type. The folder appears complete or not at all; an earlier one of this kind is replaced.
  Status save(const std::string& folder) const;

  // Runs the model; then outputs can be read.
  Status forward(const Batch& batch);
  [[nodiscard]] Result<Tensor> output(std::string_view name) const;
  [[nodiscard]] Result<double> scalar(std::string_view name) const;  // an output of one element

  // Loss and token accuracy over batches, without training.
  Result<Metrics> evaluate(std::span<const Batch> batches);
  // One optimizer step. Each batch is a micro-step; its loss is divided by the valid targets of all of them, so that many small ones are
  // the same as a large one. The optimizer is AdamW.
  Result<StepResult> train_step(std::span<const Batch> batches, double learning_rate);
  Result<StepResult> train_step(const Batch& batch, double learning_rate) { return train_step(std::span(&batch, 1), learning_rate); }
  // The first half of train_step: gradients, without the update.
  Result<Metrics> compute_gradients(std::span<const Batch> batches);
  // d loss / d parameter of the last train_step or compute_gradients, before clipping; f32, or f64 in an f64 model. Tied parameters have
  // one.
  [[nodiscard]] Result<Tensor> gradient(std::string_view parameter) const;

  // Continues a prompt of at least one token; returns the new tokens. `on_token` gets each as soon as it is chosen.
  Result<std::vector<int32_t>> generate(std::span<const int32_t> prompt, int64_t num_tokens, const Sampling& sampling = {},
                                        const std::function<void(int32_t)>& on_token = {});

  // From any thread: the call of evaluate, forward, train_step, compute_gradients or generate that is running, or else the next one, ends
  // with kCancelled at the next node of its graph (on a GPU: at the next program). The update of the parameters is not interrupted.
  void cancel();

 private:
  explicit Model(std::unique_ptr<ModelImpl> impl);
  std::unique_ptr<ModelImpl> impl_;
};

}  // namespace v0
}  // namespace glim
