// The public Model: every function is one of ModelImpl's, with exceptions and errors converted.
#include "runtime/api/model_impl.h"

namespace glim::v0 {
namespace {

// A call that runs programs uses up a request to cancel.
template <class Body>
auto interruptible(ModelImpl& impl, Body&& body) {
  auto result = guarded(std::forward<Body>(body));
  if (!result && result.error().code == ErrorCode::kCancelled) impl.cancelled = false;
  return result;
}

}  // namespace

Model::Model(std::unique_ptr<ModelImpl> impl) : impl_(std::move(impl)) {}
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;
Model::~Model() = default;

Result<Model> Model::load(const std::string& model, const LoadOptions& options) {
  route_bugs();
  auto impl = guarded([&] { return ModelImpl::create(options, [&] { return open_model(model, options.settings, options.weights); }); });
  if (!impl) return impl.error();
  return Model(*std::move(impl));
}

Result<Model> Model::load_text(std::string_view toml, const LoadOptions& options) {
  route_bugs();
  auto impl = guarded([&] { return ModelImpl::create(options, [&] { return open_model_text(toml, options.settings, options.weights); }); });
  if (impl) return Model(*std::move(impl));
  Error error = impl.error();
  if (error.file == model_text_name()) error.file = "<text>";
  return error;
}

std::vector<InputInfo> Model::inputs() const { return impl_->inputs(); }
std::vector<OutputInfo> Model::outputs() const { return impl_->outputs(); }
std::vector<ParameterInfo> Model::parameters() const { return impl_->parameters(); }

void Model::reset_optimizer() { impl_->reset_optimizer(); }

Status Model::initialise(uint64_t seed) {
  return guarded([&]() -> glim::Status {
    impl_->initialise(seed);
    return ok();
  });
}
Status Model::load_weights(const std::string& path) {
  return guarded([&] { return impl_->load_weights(path); });
}
Result<Tensor> Model::parameter(std::string_view name) const {
  return guarded([&] { return impl_->parameter(name); });
}
Status Model::set_parameter(std::string_view name, const Tensor& value) {
  return guarded([&] { return impl_->set_parameter(name, value); });
}
Status Model::save(const std::string& folder) const {
  return guarded([&] { return impl_->save(folder); });
}
Result<Tensor> Model::gradient(std::string_view parameter) const {
  return guarded([&] { return impl_->gradient(parameter); });
}

Status Model::forward(const Batch& batch) {
  return interruptible(*impl_, [&] { return impl_->forward(batch); });
}
Result<Tensor> Model::output(std::string_view name) const {
  return guarded([&] { return impl_->output(name); });
}
Result<double> Model::scalar(std::string_view name) const {
  return guarded([&] { return impl_->scalar(name); });
}
Result<Metrics> Model::evaluate(std::span<const Batch> batches) {
  return interruptible(*impl_, [&] { return impl_->evaluate(batches); });
}
Result<Metrics> Model::compute_gradients(std::span<const Batch> batches) {
  return interruptible(*impl_, [&] { return impl_->compute_gradients(batches, "compute_gradients"); });
}
Result<StepResult> Model::train_step(std::span<const Batch> batches, double learning_rate) {
  return interruptible(*impl_, [&] { return impl_->train_step(batches, learning_rate); });
}
Result<std::vector<int32_t>> Model::generate(std::span<const int32_t> prompt, int64_t num_tokens, const Sampling& sampling,
                                             const std::function<void(int32_t)>& on_token) {
  return interruptible(*impl_, [&] { return impl_->generate(prompt, num_tokens, sampling, on_token); });
}

void Model::cancel() { impl_->cancelled = true; }

}  // namespace glim::v0
