// Training and sampling through the runtime's interface: what accumulation, schedules and draws promise, and that a step allocates nothing.
#include <algorithm>
#include <atomic>
#include <numeric>

#include "runtime/generator.h"
#include "runtime/trainer.h"
#include "tests/runtime/small_model.h"

namespace {
std::atomic<int64_t> num_allocations{0};
}  // namespace

// Every heap allocation of every thread is counted: by the sanitizer's own hook, or by standing before the C library's functions.
#if defined(__SANITIZE_ADDRESS__)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void*, size_t),
                                                         void (*free_hook)(const volatile void*));
namespace {
[[maybe_unused]] const int is_hooked =
    __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t) { ++num_allocations; }, [](const volatile void*) {});
}  // namespace
#elif !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void* malloc(size_t size) {
  ++num_allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  ++num_allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  ++num_allocations;
  return __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  ++num_allocations;
  return __libc_memalign(alignment, size);
}
}
#endif

namespace glim {
namespace {

// Documents of these lengths, deterministic bytes.
struct Corpus {
  ScratchFolder folder;
  explicit Corpus(const std::vector<size_t>& lengths) {
    for (size_t k = 0; k < lengths.size(); ++k) {
      std::string text;
      for (size_t i = 0; i < lengths[k]; ++i) text += static_cast<char>('a' + (i * (k + 3) + i / 7) % 11);
      write_file(folder / ("text" + std::to_string(k) + ".txt"), text);
    }
  }
};
TrainConfig small_config(const Corpus& corpus) {
  TrainConfig config;
  config.model = GLIM_SOURCE_DIR "/models/muse_glimmer_tiny.toml";
  config.set = {"hidden=32", "feed_forward=48", "num_heads=4", "num_kv_heads=2", "head_dim=8", "num_layers=4", "sliding_window=16"};
  config.data.text = {corpus.folder.path()};
  config.data.validation_fraction = 0;
  config.tokens = 64;
  config.steps = 100;
  config.warmup_steps = 2;
  config.learning_rate = 1e-2;
  config.dtype = DType::kF64;
  return config;
}
Trainer make_trainer(const TrainConfig& config) {
  Result<Trainer> trainer = Trainer::create(config);
  if (!trainer) throw std::runtime_error(trainer.error().to_string());
  return std::move(*trainer);
}

// Four documents, each longer than half a row: four micro-steps of one document, or one micro-step that holds all of them.
TEST(Trainer, AccumulationIsOneLargeBatch) {
  const Corpus corpus({60, 40, 50, 33});
  TrainConfig config = small_config(corpus);
  config.micro_steps = 4;
  Trainer accumulated = make_trainer(config);
  ASSERT_EQ(accumulated.data().num_rows(), 4);
  config.micro_steps = 1;
  config.tokens = 183;
  Trainer whole = make_trainer(config);
  ASSERT_EQ(whole.data().num_rows(), 1);
  double first_loss = 0;
  for (int step = 0; step < 4; ++step) {
    const Result<StepMetrics> a = accumulated.step(), b = whole.step();
    ASSERT_TRUE(a && b);
    EXPECT_EQ(a->num_valid, 60 + 40 + 50 + 33 - 4);
    EXPECT_EQ(a->num_valid, b->num_valid);
    EXPECT_EQ(a->num_tokens, 183);
    EXPECT_EQ(b->num_tokens, 183);
    EXPECT_NEAR(a->loss, b->loss, 1e-9);
    EXPECT_EQ(a->token_accuracy, b->token_accuracy);
    EXPECT_NEAR(a->gradient_norm / b->gradient_norm, 1, 1e-8);
    EXPECT_FALSE(a->skipped);
    EXPECT_EQ(a->step, step + 1);
    if (step == 0) {
      EXPECT_NEAR(a->loss, b->loss, 1e-12);
      first_loss = a->loss;
    } else {
      EXPECT_LT(a->loss, first_loss);
    }
  }
  const auto weights = [](Trainer& trainer) { return as_doubles(*trainer.model().state("decoder.1.q_proj")); };
  EXPECT_LT(relative_distance(weights(accumulated), weights(whole)), 1e-7);
}

TEST(Trainer, ValidationChangesNothingAndReadsTheHeldOutPart) {
  const Corpus corpus({500, 500});
  TrainConfig config = small_config(corpus);
  config.data.validation_fraction = 0.2;
  Trainer watched = make_trainer(config), plain = make_trainer(config);
  ASSERT_GT(watched.data().num_validation_rows(), 0);
  for (int step = 0; step < 3; ++step) {
    const Result<Evaluation> before = watched.validate(), again = watched.validate();
    ASSERT_TRUE(before && again);
    EXPECT_EQ(before->loss, again->loss);
    EXPECT_EQ(before->token_accuracy, static_cast<double>(before->num_correct) / static_cast<double>(before->num_valid));
    const Result<StepMetrics> a = watched.step(), b = plain.step();
    ASSERT_TRUE(a && b);
    EXPECT_EQ(a->loss, b->loss);
    EXPECT_EQ(a->gradient_norm, b->gradient_norm);
  }
  EXPECT_NEAR(make_trainer(config).validate()->loss, std::log(256.0), 0.3);
  ASSERT_TRUE(watched.validate(1));
  EXPECT_LE(watched.validate(1)->num_valid, 63);
}

TEST(Trainer, LearningRateZeroChangesNoParameter) {
  const Corpus corpus({200});
  TrainConfig config = small_config(corpus);
  config.learning_rate = config.final_learning_rate = 0;
  Trainer trainer = make_trainer(config);
  const std::vector<double> before = as_doubles(*trainer.model().state("decoder.2.down_proj"));
  ASSERT_TRUE(trainer.step());
  EXPECT_EQ(as_doubles(*trainer.model().state("decoder.2.down_proj")), before);
  config.learning_rate = 1e-3;
  Trainer moving = make_trainer(config);
  ASSERT_TRUE(moving.step());
  EXPECT_NE(as_doubles(*moving.model().state("decoder.2.down_proj")), before);
}

TEST(Trainer, NotFiniteGradientsSkipTheStepAndThenEndTraining) {
  const Corpus corpus({200});
  Trainer trainer = make_trainer(small_config(corpus));
  ASSERT_TRUE(trainer.step());
  const std::span<std::byte> bytes = trainer.model().state_bytes("head.norm");
  const double infinite = INFINITY;
  std::memcpy(bytes.data(), &infinite, sizeof infinite);
  const std::vector<double> before = as_doubles(*trainer.model().state("decoder.0.q_proj"));
  for (int k = 1; k < Trainer::kMaxSkipped; ++k) {
    const Result<StepMetrics> metrics = trainer.step();
    ASSERT_TRUE(metrics);
    EXPECT_TRUE(metrics->skipped);
  }
  const Result<StepMetrics> last = trainer.step();
  ASSERT_FALSE(last);
  EXPECT_EQ(last.error().code, ErrorCode::kNumeric);
  EXPECT_EQ(as_doubles(*trainer.model().state("decoder.0.q_proj")), before);
}

TEST(Trainer, OnlyModelsOverBytes) {
  const Corpus corpus({200});
  TrainConfig config = small_config(corpus);
  config.model = muse_glimmer_file();
  config.set = {"vocab=37",       "hidden=24",  "feed_forward=40",  "num_layers=1",         "num_heads=4",
                "num_kv_heads=2", "head_dim=8", "sliding_window=4", "output_multiplier=0.5"};
  const Result<Trainer> trainer = Trainer::create(config);
  ASSERT_FALSE(trainer);
  EXPECT_NE(trainer.error().message.find("bytes"), std::string::npos) << trainer.error().message;
}

TEST(LearningRate, WarmsUpAndFallsAlongACosine) {
  TrainConfig config;
  config.learning_rate = 0.8;
  config.final_learning_rate = 0.2;
  config.warmup_steps = 4;
  config.steps = 14;
  const double expected[] = {0.2, 0.4, 0.6, 0.8, 0.8};
  for (int64_t step = 0; step < 5; ++step) EXPECT_NEAR(learning_rate_at(config, step), expected[step], 1e-15) << step;
  EXPECT_NEAR(learning_rate_at(config, 9), 0.5, 1e-15);  // half of the way
  EXPECT_NEAR(learning_rate_at(config, 14), 0.2, 1e-15);
  EXPECT_NEAR(learning_rate_at(config, 1000), 0.2, 1e-15);
  for (int64_t step = 5; step < 14; ++step) EXPECT_LT(learning_rate_at(config, step), learning_rate_at(config, step - 1));
  config.warmup_steps = 0;
  EXPECT_NEAR(learning_rate_at(config, 0), 0.8, 1e-15);
  config.warmup_steps = config.steps;  // all warm-up
  EXPECT_NEAR(learning_rate_at(config, 13), 0.8, 1e-15);
  EXPECT_TRUE(std::isfinite(learning_rate_at(config, 14)));
}

const std::vector<double> kLogits{0.5, 2.0, -1.0, 2.0, 1.2};
std::vector<double> probabilities(double temperature) {
  std::vector<double> p;
  for (const double logit : kLogits) p.push_back(std::exp(logit / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& each : p) each /= sum;
  return p;
}
std::vector<double> frequencies(const SamplingOptions& options, int num_draws = 20000) {
  std::vector<double> f(kLogits.size());
  for (int draw = 0; draw < num_draws; ++draw)
    f[static_cast<size_t>(sample_token(kLogits, options, static_cast<uint64_t>(draw)))] += 1.0 / num_draws;
  return f;
}
// Within five standard deviations of what independent draws would give.
void expect_matches(const std::vector<double>& f, const std::vector<double>& p, int num_draws = 20000) {
  for (size_t k = 0; k < p.size(); ++k) EXPECT_NEAR(f[k], p[k], 5 * std::sqrt(p[k] * (1 - p[k]) / num_draws)) << k;
}

TEST(Sampling, GreedyTakesTheLowestOfEqualTokens) {
  for (uint64_t draw = 0; draw < 50; ++draw) {
    EXPECT_EQ(sample_token(kLogits, {}, draw), 1);
    EXPECT_EQ(sample_token(kLogits, {.temperature = 1, .top_k = 1}, draw), 1);
    EXPECT_EQ(sample_token(kLogits, {.temperature = 1, .top_p = 0}, draw), 1);
    EXPECT_EQ(sample_token(kLogits, {.temperature = 1, .top_p = 1e-9}, draw), 1);
  }
  EXPECT_EQ(sample_token(std::vector<double>{-5}, {.temperature = 1}, 3), 0);
}

TEST(Sampling, FrequenciesAreTheSoftmax) {
  for (const double temperature : {0.5, 1.0, 3.0}) expect_matches(frequencies({.temperature = temperature}), probabilities(temperature));
  const std::vector<double> cold = frequencies({.temperature = 0.01});
  EXPECT_NEAR(cold[1] + cold[3], 1, 1e-12);
}

TEST(Sampling, TopKAndTopPKeepTheMostLikely) {
  const std::vector<double> p = probabilities(1);
  const auto kept = [&](const std::vector<size_t>& tokens) {
    std::vector<double> q(p.size());
    double sum = 0;
    for (const size_t token : tokens) sum += p[token];
    for (const size_t token : tokens) q[token] = p[token] / sum;
    return q;
  };
  expect_matches(frequencies({.temperature = 1, .top_k = 2}), kept({1, 3}));
  expect_matches(frequencies({.temperature = 1, .top_k = 3}), kept({1, 3, 4}));
  expect_matches(frequencies({.temperature = 1, .top_k = 99}), p);
  // The smallest set that reaches the mass: the token that crosses it is kept.
  expect_matches(frequencies({.temperature = 1, .top_p = p[1] + 1e-6}), kept({1, 3}));
  expect_matches(frequencies({.temperature = 1, .top_p = p[1] + p[3] - 1e-6}), kept({1, 3}));
  expect_matches(frequencies({.temperature = 1, .top_p = p[1] + p[3] + 1e-6}), kept({1, 3, 4}));
  expect_matches(frequencies({.temperature = 1, .top_k = 3, .top_p = 0.999999}), kept({1, 3, 4}));
}

TEST(Sampling, ADrawIsAFunctionOfSeedAndCount) {
  const auto sequence = [](uint64_t seed) {
    std::vector<int32_t> tokens;
    for (uint64_t draw = 0; draw < 64; ++draw) tokens.push_back(sample_token(kLogits, {.temperature = 1, .seed = seed}, draw));
    return tokens;
  };
  EXPECT_EQ(sequence(7), sequence(7));
  EXPECT_NE(sequence(7), sequence(8));
}

TEST(Generate, ContinuesAndStops) {
  const ModelSpec spec = small_spec();
  const auto continued = [&](int64_t capacity, int64_t num_tokens, const SamplingOptions& options) {
    SmallModel model(spec, {.tokens = capacity, .outputs = {"row_logits"}});
    std::vector<int32_t> seen;
    const Result<std::vector<int32_t>> tokens =
        generate(model.model(), {3, 1, 4}, num_tokens, options, [&](int32_t token) { seen.push_back(token); });
    EXPECT_TRUE(tokens);
    EXPECT_EQ(*tokens, seen);
    return seen;
  };
  const std::vector<int32_t> tokens = continued(11, 8, {});
  ASSERT_EQ(tokens.size(), 8U);
  EXPECT_EQ(continued(40, 8, {}), tokens);  // the size of the bucket does not matter
  EXPECT_EQ(continued(11, 4, {}), (std::vector<int32_t>(tokens.begin(), tokens.begin() + 4)));
  // Each token is the most likely one after what came before.
  std::vector<int32_t> prefix{3, 1, 4};
  for (const int32_t token : tokens) {
    const auto length = static_cast<int32_t>(prefix.size());
    SmallModel model(spec, {.tokens = length, .outputs = {"logits"}});
    const std::vector<double> logits =
        model
            .run(ProgramKind::kForward,
                 {{"tokens", prefix}, {"labels", std::vector<int32_t>(prefix.size(), -100)}, {"row_lengths", {length}}})
            .output("logits");
    EXPECT_EQ(std::max_element(logits.end() - 37, logits.end()) - (logits.end() - 37), token);
    prefix.push_back(token);
  }
  const size_t first = static_cast<size_t>(std::find(tokens.begin(), tokens.end(), tokens[2]) - tokens.begin());
  EXPECT_EQ(continued(11, 8, {.stop = {tokens[2]}}).size(), first + 1);
  SmallModel model(spec, {.tokens = 4, .outputs = {"row_logits"}});
  EXPECT_FALSE(generate(model.model(), {}, 1, {}, nullptr));
}

// After the first step no program allocates anything, whatever the dtype and the number of threads.
TEST(Executor, StepsAllocateNothing) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer offers no hook that counts allocations";
#endif
  const int64_t start = num_allocations;
  void* volatile kept = std::malloc(1000);  // volatile: the compiler may leave out a pair that nobody looks at
  std::free(kept);
  ASSERT_GE(num_allocations - start, 1) << "the hook does not count";
  for (const DType real : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const int threads : {1, 3}) {
      Result<ModelSpec> spec = load_spec(GLIM_SOURCE_DIR "/models/muse_glimmer_tiny.toml");
      ASSERT_TRUE(spec);
      for (const char* setting : {"hidden=64", "feed_forward=160", "num_heads=4", "head_dim=16"}) ASSERT_TRUE(set_value(*spec, setting));
      CompileOptions options;
      options.real = real;
      options.runtime_dims = {{"T", 96}, {"G", 3}};
      options.optional_inputs = {"denominator"};
      options.programs = {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kNext, ProgramKind::kUpdate};
      Result<CompiledModel> compiled = compile(*spec, builtin_ops(), options);
      ASSERT_TRUE(compiled);
      Result<Model> model = Model::create(std::move(*compiled), threads);
      ASSERT_TRUE(model);
      model->initialise(1);
      const std::vector<int32_t> tokens = random_tokens(96, 256, 1);
      ASSERT_TRUE(model->set_inputs({{"tokens", tokens}, {"labels", tokens}, {"row_lengths", {40, 1, 55}}}));
      ASSERT_TRUE(model->set_scalar("denominator", 93));
      ASSERT_TRUE(model->set_scalar(kLearningRateName, 1e-3));
      for (const ProgramKind kind : {ProgramKind::kForward, ProgramKind::kFirst, ProgramKind::kNext, ProgramKind::kUpdate}) {
        ASSERT_TRUE(model->run(kind));
        const int64_t before = num_allocations;
        const Status status = model->run(kind);
        const int64_t after = num_allocations;
        ASSERT_TRUE(status);
        EXPECT_EQ(after - before, 0) << to_string(real) << ", " << threads << " threads, program " << to_string(kind);
      }
    }
  }
}

}  // namespace
}  // namespace glim
