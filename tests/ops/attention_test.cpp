// Attention against a dense f64 implementation, and the window and packing pitfalls.
#include "ops/attention/attention.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ops/builtin_ops.h"
#include "tests/ops/case_inputs.h"

namespace glim {
namespace {

using ops::AttentionAttrs;
using testing::Tensor;
using Values = std::vector<double>;

struct Problem {
  int64_t rows, head_size;
  AttentionAttrs attrs;
  Values q, k, v, segments, ct;
};

Problem make(int64_t rows, int64_t head_size, AttentionAttrs attrs, Values segments, double deviation = 1) {
  Problem p{rows,
            head_size,
            attrs,
            testing::random_normal(rows * attrs.num_heads * head_size, 1),
            testing::random_normal(rows * attrs.num_kv_heads * head_size, 2),
            testing::random_normal(rows * attrs.num_kv_heads * head_size, 3),
            std::move(segments),
            testing::random_normal(rows * attrs.num_heads * head_size, 4)};
  for (double& x : p.q) x *= deviation;
  return p;
}

struct Answer {
  Values out, lse, ct_q, ct_k, ct_v;
};

bool visible(const Problem& p, int64_t i, int64_t j) {
  const int64_t w = p.attrs.window;
  for (size_t g = 0; g + 1 < p.segments.size(); ++g) {
    const auto begin = static_cast<int64_t>(p.segments[g]), end = static_cast<int64_t>(p.segments[g + 1]);
    if (i < begin || i >= end || j < begin || j >= end) continue;
    if (p.attrs.causal) return j <= i && (w == 0 || j > i - w);
    return w == 0 || std::abs(i - j) < w;
  }
  return false;
}

// Textbook softmax over a [T, T] matrix per head, and its textbook gradient.
Answer dense(const Problem& p) {
  const int64_t heads = p.attrs.num_heads, kv_heads = p.attrs.num_kv_heads, d = p.head_size, t = p.rows;
  Answer a{Values(p.q.size()), Values(static_cast<size_t>(t * heads)), Values(p.q.size()), Values(p.k.size()), Values(p.k.size())};
  const auto at = [&](int64_t row, int64_t head, int64_t num_heads, int64_t c) {
    return static_cast<size_t>((row * num_heads + head) * d + c);
  };
  for (int64_t h = 0; h < heads; ++h) {
    const int64_t kv = h / (heads / kv_heads);
    for (int64_t i = 0; i < t; ++i) {
      Values prob(static_cast<size_t>(t), 0.0), dp(static_cast<size_t>(t), 0.0);
      double top = -1e300, sum = 0, mean = 0;
      for (int64_t j = 0; j < t; ++j) {
        if (!visible(p, i, j)) continue;
        double s = 0;
        for (int64_t c = 0; c < d; ++c) {
          s += p.q[at(i, h, heads, c)] * p.k[at(j, kv, kv_heads, c)];
          dp[static_cast<size_t>(j)] += p.ct[at(i, h, heads, c)] * p.v[at(j, kv, kv_heads, c)];
        }
        prob[static_cast<size_t>(j)] = s * p.attrs.scale;
        top = std::max(top, s * p.attrs.scale);
      }
      for (int64_t j = 0; j < t; ++j) sum += visible(p, i, j) ? std::exp(prob[static_cast<size_t>(j)] - top) : 0;
      if (sum == 0) continue;
      a.lse[static_cast<size_t>(i * heads + h)] = top + std::log(sum);
      for (int64_t j = 0; j < t; ++j) {
        double& x = prob[static_cast<size_t>(j)];
        x = visible(p, i, j) ? std::exp(x - top) / sum : 0;
        mean += x * dp[static_cast<size_t>(j)];
      }
      for (int64_t j = 0; j < t; ++j) {
        const double x = prob[static_cast<size_t>(j)], ds = x * (dp[static_cast<size_t>(j)] - mean) * p.attrs.scale;
        for (int64_t c = 0; c < d; ++c) {
          a.out[at(i, h, heads, c)] += x * p.v[at(j, kv, kv_heads, c)];
          a.ct_v[at(j, kv, kv_heads, c)] += x * p.ct[at(i, h, heads, c)];
          a.ct_q[at(i, h, heads, c)] += ds * p.k[at(j, kv, kv_heads, c)];
          a.ct_k[at(j, kv, kv_heads, c)] += ds * p.q[at(i, h, heads, c)];
        }
      }
    }
  }
  return a;
}

struct Ran {
  Answer values;
  std::vector<std::vector<std::byte>> bits;  // out, lse, ct_q, ct_k, ct_v
  std::string error;
};

Ran run(const Problem& p, DType dtype, testing::RunOptions options = {}) {
  const int64_t q_width = p.attrs.num_heads * p.head_size, kv_width = p.attrs.num_kv_heads * p.head_size;
  const Tensor q({dtype, {p.rows, q_width}}, p.q), k({dtype, {p.rows, kv_width}}, p.k), v({dtype, {p.rows, kv_width}}, p.v),
      segments({DType::kI32, {static_cast<int64_t>(p.segments.size())}}, p.segments), ct({dtype, {p.rows, q_width}}, p.ct);
  const OpTable& table = builtin_ops();
  const std::vector<uint32_t> words = to_words(p.attrs);
  const Tensor* in[] = {&q, &k, &v, &segments};
  const testing::KernelRun forward = testing::run_op(table[*table.find("attention")], words, in, options);
  const Tensor* vjp_in[] = {&q, &k, &v, &segments, &forward.out[0], &forward.out[1], &ct};
  const testing::KernelRun backward = testing::run_op(table[*table.find("attention_vjp")], words, vjp_in, options);
  EXPECT_TRUE(forward.margins_intact && backward.margins_intact && forward.operands_intact && backward.operands_intact);
  Ran ran{{forward.out[0].values(), forward.out[1].values(), backward.out[0].values(), backward.out[1].values(), backward.out[2].values()},
          {},
          forward.error};
  for (const Tensor& t : forward.out) ran.bits.push_back(t.bits());
  for (const Tensor& t : backward.out) ran.bits.push_back(t.bits());
  return ran;
}

void expect_equal(const Answer& a, const Answer& b, double tolerance) {
  EXPECT_LE(testing::relative_error(a.out, b.out), tolerance);
  EXPECT_LE(testing::relative_error(a.lse, b.lse), tolerance);
  EXPECT_LE(testing::relative_error(a.ct_v, b.ct_v), tolerance);
  // These are exactly 0 where every query sees one key.
  for (const auto& [x, y] : {std::pair{a.ct_q, b.ct_q}, std::pair{a.ct_k, b.ct_k}}) {
    for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], y[i], tolerance * (1 + testing::norm(y)));
  }
}

TEST(Attention, MatchesDenseInEveryGeometry) {
  struct Geometry {
    int64_t rows, head_size;
    AttentionAttrs attrs;
    Values segments;
  };
  const Geometry geometries[] = {{150, 8, {2, 2, 1, 0, 0.35}, {0, 150}},
                                 {150, 12, {4, 1, 1, 0, 0.3}, {0, 5, 5, 77, 141}},  // MQA, an empty segment, a tail of 9 rows
                                 {140, 4, {8, 2, 1, 65, 0.5}, {0, 130, 140, 140}},  // 4:1, window inside of the segment
                                 {40, 96, {1, 1, 1, 13, 0.1}, {0, 13, 40}},         // window equal to a segment
                                 {40, 128, {2, 1, 1, 100, 0.09}, {0, 17, 40}},      // window above every segment
                                 {150, 6, {3, 3, 0, 0, 0.4}, {0, 70, 150}},         // not causal
                                 {150, 5, {2, 1, 0, 40, 0.4}, {0, 9, 150}},         // not causal, window
                                 {9, 4, {2, 1, 1, 1, 0.5}, {0, 4, 9}},              // every query sees itself only
                                 {20, 4, {2, 1, 1, 0, 0.5}, {3, 20}}};              // rows before the first segment
  for (const Geometry& c : geometries) {
    SCOPED_TRACE(fmt::format("T {} d {} heads {}/{} causal {} window {}", c.rows, c.head_size, c.attrs.num_heads, c.attrs.num_kv_heads,
                             c.attrs.causal, c.attrs.window));
    const Problem p = make(c.rows, c.head_size, c.attrs, c.segments);
    const Answer expected = dense(p);
    expect_equal(run(p, DType::kF64).values, expected, 1e-12);
    expect_equal(run(p, DType::kF64, {.num_threads = 3, .margins = true}).values, expected, 1e-12);
    expect_equal(run(p, DType::kF32).values, expected, 1e-5);
    expect_equal(run(p, DType::kBF16).values, expected, 2e-2);
  }
}

TEST(Attention, WindowCountsItself) {  // w = 3: token 5 averages 3, 4 and 5
  Problem p = make(6, 6, {1, 1, 1, 3, 1}, {0, 6});
  std::fill(p.q.begin(), p.q.end(), 0.0);
  for (int64_t i = 0; i < 6; ++i) {
    for (int64_t c = 0; c < 6; ++c) p.v[static_cast<size_t>(i * 6 + c)] = i == c;
  }
  const Values out = run(p, DType::kF64).values.out;
  const double third = 1.0 / 3.0;
  EXPECT_EQ(Values(out.begin() + 30, out.end()), (Values{0, 0, 0, third, third, third}));
  EXPECT_EQ(Values(out.begin(), out.begin() + 6), (Values{1, 0, 0, 0, 0, 0}));
}

TEST(Attention, PackedDocumentsDoNotSeeEachOther) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const int64_t window : {0, 4}) {
      const Problem p = make(17, 8, {4, 2, 1, window, 0.35}, {0, 5, 8, 17});
      Problem perturbed = p;
      for (int64_t c = 0; c < 16; ++c) {  // token 2, in the first document
        perturbed.k[static_cast<size_t>(2 * 16 + c)] += 3;
        perturbed.v[static_cast<size_t>(2 * 16 + c)] -= 2;
        perturbed.q[static_cast<size_t>(2 * 32 + c)] += 1;
      }
      const Ran a = run(p, dtype), b = run(perturbed, dtype);
      for (size_t k = 0; k < a.bits.size(); ++k) {
        const size_t first = a.bits[k].size() / 17 * 5;
        EXPECT_TRUE(
            std::equal(a.bits[k].begin() + static_cast<int64_t>(first), a.bits[k].end(), b.bits[k].begin() + static_cast<int64_t>(first)));
        EXPECT_NE(a.bits[k], b.bits[k]);
      }
    }
  }
}

TEST(Attention, TilingNeverChangesTheResult) {
  for (const int64_t w : {3, 63, 64, 65}) {
    for (const int64_t rows : {w - 1, w, w + 1, 2 * w, 3 * w + 1}) {
      SCOPED_TRACE(fmt::format("window {}, {} rows", w, rows));
      const Problem p = make(rows, 4, {2, 1, 1, w, 0.5}, {0, static_cast<double>(rows)});
      expect_equal(run(p, DType::kF32).values, dense(p), 1e-6 * 5);
    }
  }
}

TEST(Attention, LargeLogitsStayFinite) {
  const Problem p = make(70, 4, {2, 1, 0, 0, 20}, {0, 70}, 2);  // scores of +-80 and above
  for (const Ran& ran : {run(p, DType::kF64), run(p, DType::kF32)}) {
    for (const Values& values : {ran.values.out, ran.values.ct_q, ran.values.ct_k, ran.values.ct_v}) {
      for (const double x : values) ASSERT_TRUE(std::isfinite(x));
    }
  }
  expect_equal(run(p, DType::kF64).values, dense(p), 1e-10);
}

TEST(Attention, NaNIsNotHidden) {
  Problem p = make(6, 4, {1, 1, 1, 0, 0.5}, {0, 6});
  p.k[4] = std::nan("");
  const Values out = run(p, DType::kF32).values.out;
  EXPECT_FALSE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[4]) && std::isnan(out[20]));
}

TEST(Attention, WrongSegmentsAreReported) {
  for (const Values& segments : {Values{0, 7}, Values{0, 4, 2, 6}, Values{-1, 6}}) {
    const Ran ran = run(make(6, 4, {1, 1, 1, 0, 0.5}, segments), DType::kF32);
    EXPECT_NE(ran.error.find("segments["), std::string::npos) << ran.error;
    EXPECT_EQ(testing::norm(ran.values.out), 0);
  }
}

TEST(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  const Problem p = make(200, 16, {4, 2, 1, 90, 0.25}, {0, 120, 200});
  EXPECT_EQ(run(p, DType::kF32).bits, run(p, DType::kF32, {.num_threads = 4}).bits);
}

}  // namespace
}  // namespace glim
