#pragma once
// Small models of the shipped architecture with parameters all over their range, and what tests read from them.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "ops/builtin_ops.h"
#include "runtime/model.h"
#include "runtime/model_source.h"
#include "runtime/random.h"
#include "tests/runtime/scratch_folder.h"

namespace glim {

inline std::string muse_glimmer_file() { return GLIM_SOURCE_DIR "/models/muse_glimmer.toml"; }

// The architecture at sizes of a few dozen; `settings` are "name=value".
inline ModelSpec small_spec(const std::vector<std::string>& settings = {}, const std::string& file = muse_glimmer_file()) {
  Result<ModelSpec> spec = load_spec(file);
  EXPECT_TRUE(spec) << spec.error().to_string();
  std::vector<std::string> all{"vocab=37",       "hidden=24",  "feed_forward=40",  "num_layers=4",       "num_heads=4",
                               "num_kv_heads=2", "head_dim=8", "sliding_window=4", "rope_theta=10000.0", "output_multiplier=0.5"};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const std::string& setting : all) {
    const Status status = set_value(*spec, setting);
    EXPECT_TRUE(status) << status.error().to_string();
  }
  return std::move(*spec);
}

struct SmallOptions {
  int64_t tokens = 16, segments = 1, rows = 1;
  std::vector<std::string> outputs{"loss", "token_accuracy", "num_correct", "num_valid"};
  std::vector<ProgramKind> programs{ProgramKind::kForward};
  bool denominator = false;
  DType real = DType::kF64;
  int threads = 2;
  Backend backend = Backend::kCpu;
};

inline std::vector<double> as_doubles(const HostTensor& tensor) {
  std::vector<double> values(static_cast<size_t>(tensor.type.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = tensor.at(static_cast<int64_t>(i));
  return values;
}

class SmallModel {
 public:
  SmallModel(const ModelSpec& spec, const SmallOptions& options) : model_(make(spec, options)) {
    // A pure function of the parameter's name, so that models of different programs, or of slightly different files, agree.
    for (const ModelParameter& parameter : model_.compiled().parameters) {
      const uint64_t stream = make_stream(5, parameter.name);
      change(parameter.name, [&](size_t i, double) {
        return (parameter.init == InitKind::kConstant ? parameter.init_value : 0) + 0.3 * normal_draw(stream, i);
      });
    }
  }

  // Replaces every element of a parameter. Nothing when no program reads it.
  template <class Function>
  void change(const std::string& name, const Function& function) {
    if (!model_.has_state(name)) return;
    Result<HostTensor> tensor = model_.state(name);
    ASSERT_TRUE(tensor) << tensor.error().to_string();
    for (int64_t i = 0; i < tensor->type.shape.numel(); ++i) tensor->set(i, function(static_cast<size_t>(i), tensor->at(i)));
    const Status status = model_.set_state(name, tensor->bytes);
    ASSERT_TRUE(status) << status.error().to_string();
  }
  // The parameter of that name in every layer.
  void scale_layers(const std::string& name, double factor) {
    int found = 0;
    for (const ModelParameter& parameter : model_.compiled().parameters) {
      if (!parameter.name.ends_with("." + name)) continue;
      ++found;
      change(parameter.name, [&](size_t, double value) { return factor * value; });
    }
    EXPECT_GT(found, 0) << name;
  }

  SmallModel& run(ProgramKind kind, std::map<std::string, std::vector<int32_t>, std::less<>> inputs) {
    const Status set = model_.set_inputs(std::move(inputs));
    EXPECT_TRUE(set) << set.error().to_string();
    const Status ran = model_.run(kind);
    EXPECT_TRUE(ran) << ran.error().to_string();
    last_ = kind;
    return *this;
  }
  // Of the program that ran last.
  [[nodiscard]] std::vector<double> output(const std::string& name) const {
    const Result<HostTensor> tensor = model_.output(last_, name);
    EXPECT_TRUE(tensor) << tensor.error().to_string();
    return tensor ? as_doubles(*tensor) : std::vector<double>{};
  }
  [[nodiscard]] double scalar(const std::string& name) const { return output(name).at(0); }
  // Parameter name -> its main gradient.
  [[nodiscard]] std::map<std::string, std::vector<double>> gradients() const {
    std::map<std::string, std::vector<double>> found;
    for (const ModelParameter& parameter : model_.compiled().parameters) {
      const Result<HostTensor> gradient = model_.state(gradient_name(parameter.name));
      EXPECT_TRUE(gradient) << parameter.name;
      if (gradient) found[parameter.name] = as_doubles(*gradient);
    }
    return found;
  }
  Model& model() { return model_; }

 private:
  static Model make(const ModelSpec& spec, const SmallOptions& options) {
    CompileOptions compile_options;
    compile_options.real = options.real;
    compile_options.runtime_dims = {{"T", options.tokens}, {"G", options.segments}, {"R", options.rows}};
    compile_options.outputs = options.outputs;
    compile_options.programs = options.programs;
    if (options.denominator) compile_options.optional_inputs = {"denominator"};
    Result<CompiledModel> compiled = compile(spec, builtin_ops(), compile_options);
    if (!compiled) throw std::runtime_error(compiled.error().to_string());
    Result<Model> model = Model::create(std::move(*compiled), options.threads, options.backend);
    if (!model) throw std::runtime_error(model.error().to_string());
    return std::move(*model);
  }

  Model model_;
  ProgramKind last_ = ProgramKind::kForward;
};

inline std::vector<int32_t> random_tokens(int64_t count, int32_t vocab, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>(uniform_draw(make_stream(seed, "tokens"), static_cast<uint64_t>(i)) * vocab));
  return tokens;
}

// ||a - reference|| / ||reference||; infinite for a reference of zeros.
inline double relative_distance(const std::vector<double>& a, const std::vector<double>& reference) {
  if (a.size() != reference.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - reference[i]) * (a[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : INFINITY;
}
inline double worst_distance(const std::map<std::string, std::vector<double>>& a,
                             const std::map<std::string, std::vector<double>>& reference) {
  EXPECT_EQ(a.size(), reference.size());
  double worst = 0;
  for (const auto& [name, values] : reference) worst = std::max(worst, relative_distance(a.at(name), values));
  return worst;
}

}  // namespace glim
