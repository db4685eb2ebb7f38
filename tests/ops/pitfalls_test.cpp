// Mistakes that other implementations made, each with the small input that reveals it, and the values that must come out.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "autodiff/gradients.h"
#include "ops/adamw/adamw.h"
#include "ops/builtin_ops.h"
#include "ops/clip/clip.h"
#include "ops/concat/concat.h"
#include "ops/embedding/embedding.h"
#include "ops/gather_rows/gather_rows.h"
#include "ops/rms_norm/rms_norm.h"
#include "ops/rope/rope.h"
#include "ops/scale/scale.h"
#include "ops/scatter_add_rows/scatter_add_rows.h"
#include "tests/ops/case_inputs.h"

namespace glim::testing {
namespace {

using ops::AdamwAttrs;
using ops::RmsNormAttrs;
using ops::RopeAttrs;

KernelRun run(std::string_view op, const std::vector<uint32_t>& words, const std::vector<Tensor>& in, const RunOptions& options = {}) {
  std::vector<const Tensor*> operands;
  for (const Tensor& tensor : in) operands.push_back(tensor.type().shape.rank == 0 ? nullptr : &tensor);  // Tensor() = absent
  return run_op(builtin_ops()[*builtin_ops().find(op)], words, operands, options);
}
template <class Attrs>
std::vector<double> outputs(std::string_view op, const Attrs& attrs, const std::vector<Tensor>& in) {
  return run(op, to_words(attrs), in).out[0].values();
}
Tensor f64(Shape shape, const std::vector<double>& values) { return {{DType::kF64, shape}, values}; }
Tensor f32(Shape shape, const std::vector<double>& values) { return {{DType::kF32, shape}, values}; }
Tensor i32(Shape shape, const std::vector<double>& values) { return {{DType::kI32, shape}, values}; }
struct NoAttrs {};

TEST(Gelu, IsExactNotTheTanhApproximation) {
  const std::vector<double> x{-1, 0.5, 3, -5};
  const std::vector<double> expected{-0.15865525393145707, 0.34573123063700656, 2.99595030590511, -1.4332578593959731e-06};
  const std::vector<double> wide = outputs("gelu", NoAttrs{}, {f64({4}, x)}), narrow = outputs("gelu", NoAttrs{}, {f32({4}, x)});
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(wide[i] / expected[i], 1, 1e-14);
    EXPECT_NEAR(narrow[i] / expected[i], 1, 5e-7);
  }
  EXPECT_GT(std::fabs(wide[0] - -0.158808), 1e-4);
}

TEST(Rope, RotatesIntoTheOtherHalf) {
  const std::vector<double> out = outputs("rope", RopeAttrs{4, 10000, 0}, {f64({1, 4}, {1, 0, 0, 0}), i32({1}, {1})});
  EXPECT_NEAR(out[0], std::cos(1.0), 1e-15);
  EXPECT_EQ(out[1], 0);  // where the interleaved layout would put the sine
  EXPECT_NEAR(out[2], std::sin(1.0), 1e-15);
  EXPECT_EQ(out[3], 0);
  // The second pair turns by theta^(-1/2) = 0.01.
  const std::vector<double> slow = outputs("rope", RopeAttrs{4, 10000, 0}, {f64({1, 4}, {0, 1, 0, 0}), i32({1}, {1})});
  EXPECT_NEAR(slow[1], std::cos(0.01), 1e-15);
  EXPECT_NEAR(slow[3], std::sin(0.01), 1e-15);
}

// In f32 runs the frequency and the angle are both rounded to f32, which at position 100,000 is far from the f64 angle.
TEST(Rope, RoundsAnglesLikeTheModel) {
  const double theta = 500000;
  const std::vector<double> narrow = outputs("rope", RopeAttrs{8, theta, 0}, {f32({1, 8}, {0, 1, 0, 0, 0, 0, 0, 0}), i32({1}, {100000})});
  const float frequency = static_cast<float>(std::pow(theta, -0.25)), angle = 100000.0F * frequency;
  EXPECT_NEAR(narrow[1], std::cos(static_cast<double>(angle)), 1e-7);
  EXPECT_NEAR(narrow[5], std::sin(static_cast<double>(angle)), 1e-7);
  const double exact = std::cos(100000 * std::pow(theta, -0.25));
  EXPECT_GT(std::fabs(narrow[1] - exact), 3e-6);
  EXPECT_NEAR(outputs("rope", RopeAttrs{8, theta, 0}, {f64({1, 8}, {0, 1, 0, 0, 0, 0, 0, 0}), i32({1}, {100000})})[1], exact, 1e-12);
}

// A branch of magnitude 1e-4: its mean square is 1e-8, so eps decides its gain.
TEST(RmsNorm, EpsMattersForSmallBranches) {
  for (const bool narrow : {false, true}) {
    const auto gain = [&](double eps) {
      const std::vector<double> x{1e-4, -1e-4, 1e-4, 1e-4};
      return outputs("rms_norm", RmsNormAttrs{eps, 0, 0}, {narrow ? f32({1, 4}, x) : f64({1, 4}, x), Tensor()})[0];
    };
    EXPECT_NEAR(gain(1e-8), std::sqrt(0.5), 1e-6);
    EXPECT_NEAR(gain(1e-5), 0.031607, 1e-6);
  }
}

TEST(RmsNorm, ZeroRowsAreFinite) {
  for (const double eps : {1e-5, 1e-8}) {
    const Tensor zero = f32({1, 4}, {0, 0, 0, 0}), weight = f32({4}, {1, 2, 3, 4}), ct = f32({1, 4}, {1, -2, 0.5, 3});
    const std::vector<uint32_t> words = to_words(RmsNormAttrs{eps, 0, 0});
    EXPECT_EQ(run("rms_norm", words, {zero, weight}).out[0].values(), (std::vector<double>{0, 0, 0, 0}));
    const KernelRun vjp = run("rms_norm_vjp", words, {zero, weight, ct, Tensor()});
    const std::vector<double> slope = vjp.out[0].values();
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(slope[static_cast<size_t>(i)] / (ct.get(i) * weight.get(i) / std::sqrt(eps)), 1, 1e-6);
    for (const double value : vjp.out[1].values()) EXPECT_EQ(value, 0);
  }
}

TEST(RmsNorm, CenteredAndScaledDiffer) {
  const Tensor x = f64({1, 4}, {1, -2, 3, -4}), weight = f64({4}, {-0.9, 0.25, 2, -4.9});
  const std::vector<double> scaled = outputs("rms_norm", RmsNormAttrs{1e-5, 0, 0}, {x, weight}),
                            centered = outputs("rms_norm", RmsNormAttrs{1e-5, 1, 0}, {x, weight}),
                            plain = outputs("rms_norm", RmsNormAttrs{1e-5, 0, 0}, {x, Tensor()});
  const double r = 1 / std::sqrt(30.0 / 4 + 1e-5);
  for (int i = 0; i < 4; ++i) {
    const auto k = static_cast<size_t>(i);
    EXPECT_NEAR(plain[k], x.get(i) * r, 1e-15);
    EXPECT_NEAR(scaled[k], x.get(i) * r * weight.get(i), 1e-14);
    EXPECT_NEAR(centered[k], x.get(i) * r * (1 + weight.get(i)), 1e-14);
    EXPECT_GT(std::fabs(scaled[k] - centered[k]), 0.1);
  }
}

TEST(RmsNorm, GroupsAreNormalisedAlone) {
  const Tensor x = f64({1, 4}, {3, 4, 30, 40});
  const std::vector<double> grouped = outputs("rms_norm", RmsNormAttrs{1e-12, 0, 2}, {x, Tensor()});
  EXPECT_NEAR(grouped[0], grouped[2], 1e-12);
  EXPECT_NEAR(grouped[1], 4 / std::sqrt(12.5), 1e-12);
}

// A scale before the norm is lost, one behind it is not.
TEST(RmsNorm, RemovesAScaleOfItsInput) {
  const auto normed = [](double before, double after) {
    Graph g(builtin_ops());
    const Tensor x({DType::kF64, Shape{2, 6}}, random_normal(12, 3));
    const ValueId leaf = g.add_leaf(LeafKind::kInput, "x", x.type());
    const ValueId out = ops::scale(g, ops::rms_norm(g, ops::scale(g, leaf, before), {}, 1e-12), after);
    return evaluate(g, {{leaf, x}})[out.index].values();
  };
  EXPECT_LT(relative_error(normed(7, 3.87), normed(1, 3.87)), 1e-10);
  EXPECT_NEAR(relative_error(normed(1, 3.87), normed(1, 1)), 2.87, 1e-10);
}

TEST(Scale, FactorIsNotRoundedToBf16) {
  const Tensor x({DType::kBF16, Shape{1}}, std::vector<double>{1024});
  EXPECT_EQ(outputs("scale", ops::ScaleAttrs{3.87}, {x})[0], 3968);  // 3962.88 rounded once; 3.875 * 1024 happens to be 3968 as well
  const Tensor y({DType::kBF16, Shape{1}}, std::vector<double>{1.2421875});
  // 3.87 * 1.2421875 = 4.807 -> 4.8125; 3.875 * 1.2421875 = 4.8135 -> 4.8125; a factor of 1.001 tells: bf16 would make it 1.
  EXPECT_EQ(outputs("scale", ops::ScaleAttrs{3.87}, {y})[0], 4.8125);
  const Tensor z({DType::kBF16, Shape{1}}, std::vector<double>{1.9921875});
  EXPECT_EQ(outputs("scale", ops::ScaleAttrs{1.003}, {z})[0], 2.0);
}

TEST(Indices, OutOfRangeIsReportedAndLeavesZeros) {
  const Tensor table = f32({3, 2}, {1, 2, 3, 4, 5, 6});
  const KernelRun embedded = run("embedding", to_words(ops::EmbeddingAttrs{-1}), {i32({4}, {2, 3, -1, 0}), table});
  EXPECT_EQ(embedded.error, "embedding: id 3 at position 1 is outside [0, 3)");
  EXPECT_EQ(embedded.out[0].values(), (std::vector<double>{5, 6, 0, 0, 0, 0, 1, 2}));
  const KernelRun gathered = run("gather_rows", to_words(ops::GatherRowsAttrs{-1}), {table, i32({4}, {-1, 2, 2147483647, -2147483648.0})});
  EXPECT_EQ(gathered.error, "gather_rows: index 2147483647 at position 2 is outside [0, 3)");
  EXPECT_EQ(gathered.out[0].values(), (std::vector<double>{0, 0, 5, 6, 0, 0, 0, 0}));
  const KernelRun scattered = run("scatter_add_rows", to_words(ops::ScatterAddRowsAttrs{2, -1, 0}), {table, i32({3}, {1, 2, 1}), Tensor()});
  EXPECT_EQ(scattered.error, "scatter_add_rows: index 2 at position 1 is outside [0, 2)");
  EXPECT_EQ(scattered.out[0].values(), (std::vector<double>{0, 0, 6, 8}));
  EXPECT_EQ(run("gather_rows", to_words(ops::GatherRowsAttrs{1}), {table, i32({2}, {1, 2})}).error, "");
}

TEST(Embedding, PaddingRowIsReadButGetsNoGradient) {
  Graph g(builtin_ops());
  const Tensor ids = i32({4}, {1, 0, 1, 2}), weight = f64({3, 2}, {1, 2, 3, 4, 5, 6}), seed = f64({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const ValueId ids_leaf = g.add_leaf(LeafKind::kInput, "ids", ids.type()),
                weight_leaf = g.add_leaf(LeafKind::kParameter, "weight", weight.type());
  const ValueId out = ops::embedding(g, ids_leaf, weight_leaf, 1), seed_leaf = g.add_leaf(LeafKind::kSeed, "seed", seed.type());
  const Seeded seeded[] = {{out, seed_leaf}};
  const ValueId wrt[] = {weight_leaf};
  const Result<std::vector<ValueId>> found = gradients(g, seeded, wrt);
  ASSERT_TRUE(found);
  const std::vector<Tensor> values = evaluate(g, {{ids_leaf, ids}, {weight_leaf, weight}, {seed_leaf, seed}});
  EXPECT_EQ(values[out.index].values(), (std::vector<double>{3, 4, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(values[(*found)[0].index].values(), (std::vector<double>{3, 4, 0, 0, 7, 8}));
}

// A diverged step must stay visible: no kernel turns NaN or infinity into a number.
TEST(NonFinite, IsNotSwallowed) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const Tensor x({dtype, Shape{1, 20}}, std::vector<double>(20, nan)), one({dtype, Shape{1, 20}}, std::vector<double>(20, 1.0));
    for (const std::string_view op : {"sigmoid", "gelu"}) EXPECT_EQ(run(op, {}, {x}).out[0].num_poisoned(), 20) << op;
    for (const std::string_view op : {"sigmoid_gate", "swiglu", "mul", "add", "sigmoid_vjp", "gelu_vjp"}) {
      EXPECT_EQ(run(op, {}, {x, one}).out[0].num_poisoned(), 20) << op;
      EXPECT_EQ(run(op, {}, {one, x}).out[0].num_poisoned(), 20) << op;
    }
    EXPECT_EQ(run("rms_norm", to_words(RmsNormAttrs{1e-5, 0, 0}), {x, Tensor()}).out[0].num_poisoned(), 20);
  }
  for (const double bad : {nan, inf, -inf}) {
    std::vector<double> values(100, 1.0);
    values[63] = bad;
    const KernelRun sum = run("sum_of_squares", {}, {f32({10, 10}, values), f32({3}, {1, 1, 1})});
    for (const double max_norm : {0.0, 1.0}) {
      const KernelRun clip = run("clip", to_words(ops::ClipAttrs{max_norm}), {sum.out[0]});
      EXPECT_EQ(clip.out[2].get(0), 0);
      EXPECT_FALSE(std::isfinite(clip.out[1].get(0)));
      EXPECT_TRUE(std::isfinite(clip.out[0].get(0)));
    }
  }
}

TEST(Clip, Values) {
  const auto clip = [](double sum, double max_norm) { return run("clip", to_words(ops::ClipAttrs{max_norm}), {f64({1}, {sum})}).out; };
  EXPECT_NEAR(clip(25, 1)[0].get(0), 1 / (5 + 1e-6), 1e-15);
  EXPECT_EQ(clip(25, 1)[1].get(0), 5);
  EXPECT_EQ(clip(25, 1)[2].get(0), 1);
  EXPECT_EQ(clip(25, 6)[0].get(0), 1);
  EXPECT_EQ(clip(25, 0)[0].get(0), 1);
  EXPECT_EQ(clip(0, 1)[0].get(0), 1);
}

// Large f32 gradients: their squares overflow f32, their norm need not.
TEST(SumOfSquares, AccumulatesInF64) {
  std::vector<double> values(100000, 1.0);
  values[0] = 4096;
  EXPECT_EQ(run("sum_of_squares", {}, {f32({100000}, values)}).out[0].get(0), 4096.0 * 4096 + 99999 + 1);  // 16877215 rounded to f32
  EXPECT_EQ(run("sum_rows", {}, {f32({100000, 1}, values)}).out[0].get(0), 104095);
}

// Operands that lie in the output already are left alone; the others are copied.
TEST(Concat, PartsBuiltInPlace) {
  Tensor whole = f32({2, 5}, {1, 2, -1, -1, -1, 3, 4, -1, -1, -1}), right = f32({2, 3}, {5, 6, 7, 8, 9, 10});
  TensorView left = whole.view();
  left.type.shape = {2, 2};
  const TensorView in[] = {left, right.view()}, out[] = {whole.view()};
  const std::vector<uint32_t> words = to_words(ops::ConcatAttrs{1});
  TestContext context(1);
  builtin_ops()[*builtin_ops().find("concat")].cpu({in, out, words, {}, context});
  EXPECT_EQ(whole.values(), (std::vector<double>{1, 2, 5, 6, 7, 3, 4, 8, 9, 10}));
}

struct AdamwRun {
  std::vector<Tensor> in;
  AdamwAttrs attrs;
  [[nodiscard]] KernelRun operator()(const RunOptions& options = {}) const { return run("adamw", to_words(attrs), in, options); }
};

// PyTorch's AdamW, one element at a time: three steps of a decayed matrix and of a vector that is not.
TEST(Adamw, MatchesTheTextbook) {
  const double rate = 0.02, beta1 = 0.9, beta2 = 0.99, eps = 1e-6, decay = 0.3, scale = 0.5;
  for (const bool has_master : {false, true}) {
    std::vector<double> weight[] = {random_normal(6, 1), random_normal(4, 2)}, m[] = {std::vector<double>(6), std::vector<double>(4)},
                        v[] = {m[0], m[1]};
    const Shape shapes[] = {{2, 3}, {4}};
    AdamwRun adamw{{f64({1}, {rate}), f64({1}, {0}), f64({1}, {scale}), i32({1}, {1})}, {beta1, beta2, eps, decay, has_master}};
    for (size_t t = 0; t < 2; ++t) {
      adamw.in.push_back(f64(shapes[t], weight[t]));
      if (has_master) adamw.in.push_back(f64(shapes[t], weight[t]));
      adamw.in.insert(adamw.in.end(), {f64(shapes[t], m[t]), f64(shapes[t], m[t]), f64(shapes[t], m[t])});
    }
    const size_t per_in = has_master ? 5 : 4, per_out = per_in - 1, gradient = has_master ? 2 : 1;
    for (int step = 1; step <= 3; ++step) {
      for (size_t t = 0; t < 2; ++t) {
        const std::vector<double> g = random_normal(static_cast<int64_t>(weight[t].size()), static_cast<uint64_t>(10 * step) + t);
        adamw.in[4 + t * per_in + gradient] = f64(shapes[t], g);
        for (size_t i = 0; i < g.size(); ++i) {
          if (t == 0) weight[t][i] -= rate * decay * weight[t][i];
          m[t][i] = beta1 * m[t][i] + (1 - beta1) * g[i] * scale;
          v[t][i] = beta2 * v[t][i] + (1 - beta2) * g[i] * scale * g[i] * scale;
          const double m_hat = m[t][i] / (1 - std::pow(beta1, step)), v_hat = v[t][i] / (1 - std::pow(beta2, step));
          weight[t][i] -= rate * m_hat / (std::sqrt(v_hat) + eps);
        }
      }
      const KernelRun next = adamw();
      EXPECT_EQ(next.out[0].get(0), step);
      adamw.in[1] = next.out[0];
      for (size_t t = 0; t < 2; ++t) {
        const auto out = std::span(next.out).subspan(1 + t * per_out, per_out);
        EXPECT_LT(relative_error(out[0].values(), weight[t]), 1e-14);
        EXPECT_LT(relative_error(out[gradient - 1].values(), weight[t]), 1e-14);
        EXPECT_LT(relative_error(out[gradient].values(), m[t]), 1e-14);
        EXPECT_LT(relative_error(out[gradient + 1].values(), v[t]), 1e-14);
        for (size_t k = 0; k < per_out; ++k) adamw.in[4 + t * per_in + k + (k >= gradient ? 1 : 0)] = out[k];
      }
    }
  }
}

// A step that is not finite changes no bit: not of the parameters, the moments or the step count, however bad the gradients are.
TEST(Adamw, SkippedStepChangesNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Shape shape{2, 3};
  const std::vector<double> bad(6, nan);
  AdamwRun adamw{
      {f32({1}, {0.1}), f32({1}, {41}), f32({1}, {nan}), i32({1}, {0}), Tensor({DType::kBF16, shape}, random_normal(6, 1)),
       f32(shape, random_normal(6, 2)), f32(shape, bad), f32(shape, random_normal(6, 3)), f32(shape, std::vector<double>(6, 0.5))},
      {0.9, 0.95, 1e-8, 0.1, 1}};
  const size_t source[] = {1, 4, 5, 7, 8};
  for (const bool in_place : {false, true}) {
    const KernelRun skipped = adamw({.in_place = in_place});
    for (size_t k = 0; k < std::size(source); ++k) EXPECT_EQ(skipped.out[k].bits(), adamw.in[source[k]].bits()) << k;
  }
  adamw.in[3] = i32({1}, {1});  // and this is what the flag guards against
  EXPECT_GT(adamw().out[1].num_poisoned(), 0);
}

// The bf16 parameter is the rounded master: updates smaller than half a bf16 step are not lost.
TEST(Adamw, MasterWeightsKeepSmallUpdates) {
  AdamwRun adamw{{f32({1}, {1e-4}), f32({1}, {0}), f32({1}, {1}), i32({1}, {1}), Tensor({DType::kBF16, Shape{1}}, std::vector<double>{1}),
                  f32({1}, {1}), f32({1}, {1}), f32({1}, {0}), f32({1}, {0})},
                 {0.9, 0.95, 1e-8, 0, 1, 0}};
  for (int step = 0; step < 40; ++step) {
    const KernelRun next = adamw();
    const size_t target[] = {1, 4, 5, 7, 8};
    for (size_t k = 0; k < std::size(target); ++k) adamw.in[target[k]] = next.out[k];
  }
  EXPECT_NEAR(adamw.in[5].get(0), 1 - 40e-4, 1e-5);
  EXPECT_EQ(adamw.in[4].get(0), 0.99609375);  // the bf16 next to 0.996
}

// Without a master copy, updates of a fortieth of the distance between bf16 numbers are lost, or kept on average.
TEST(Adamw, StochasticRoundingKeepsSmallUpdatesOnAverage) {
  constexpr int kElements = 4000;
  const std::vector<double> zeros(kElements, 0), ones(kElements, 1);
  const Shape shape{kElements};
  for (const int64_t is_stochastic : {0, 1}) {
    AdamwRun adamw{{f32({1}, {1e-4}), f32({1}, {0}), f32({1}, {1}), i32({1}, {1}), Tensor({DType::kBF16, shape}, ones), f32(shape, ones),
                    f32(shape, zeros), f32(shape, zeros)},
                   {0.9, 0.95, 1e-8, 0, 0, is_stochastic}};
    for (int step = 0; step < 40; ++step) {
      const KernelRun next = adamw();
      const size_t target[] = {1, 4, 6, 7};
      for (size_t k = 0; k < std::size(target); ++k) adamw.in[target[k]] = next.out[k];
    }
    double mean = 0;
    for (int i = 0; i < kElements; ++i) mean += adamw.in[4].get(i) / kElements;
    if (is_stochastic != 0)
      EXPECT_NEAR(mean, 1 - 40e-4, 3e-4);  // five standard deviations
    else
      EXPECT_NEAR(mean, 1, 1e-12);
  }
}

TEST(Adamw, StochasticRoundingOfSpecialValues) {
  const auto word = [](float value) { return std::bit_cast<uint32_t>(value); };
  const float infinity = std::numeric_limits<float>::infinity();
  for (const uint16_t random : {uint16_t{0}, uint16_t{0x7fff}, uint16_t{0xffff}}) {
    EXPECT_EQ(ops::round_stochastically(word(infinity), random), 0x7f80);
    EXPECT_EQ(ops::round_stochastically(word(-infinity), random), 0xff80);
    EXPECT_GT(ops::round_stochastically(0x7f800001U, random) & 0x7fU, 0U);  // NaN
    EXPECT_EQ(ops::round_stochastically(word(-1.5F), random), 0xbfc0);      // a bf16 stays what it is
  }
}

}  // namespace
}  // namespace glim::testing
