// Walks the op table: every op, every case of it, every law that the engine relies on. The worst error of each kind of check is
// printed at the end.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "autodiff/gradients.h"
#include "ops/builtin_ops.h"
#include "ops/define.h"
#include "tests/ops/case_inputs.h"
#include "tests/ops/worst_errors.h"

namespace glim::testing {
namespace {

constexpr double kFiniteDifferenceBound = 1e-7;
constexpr double kDecomposeBound[] = {1e-12, 1e-5, 2e-2};  // f64, f32, bf16 (the composition rounds every intermediate value to bf16)
constexpr double kPrecisionBound[] = {0, 3e-6, 3.91e-3};   // f32; bf16 (storage only: the result is rounded once, by at most 2^-8)
constexpr DType kReals[] = {DType::kF64, DType::kF32, DType::kBF16};

// Outputs without a rule (statistics), and operands that a model never differentiates: said here, not found out.
struct OpAndName {
  std::string_view op, name;
};
constexpr OpAndName kStatistics[] = {{"cross_entropy", "token_accuracy"},
                                     {"cross_entropy", "row_lse"},
                                     {"linear_cross_entropy", "token_accuracy"},
                                     {"linear_cross_entropy", "row_lse"},
                                     {"attention", "lse"}};
constexpr OpAndName kConstants[] = {{"cross_entropy", "denominator"}, {"linear_cross_entropy", "denominator"}};
bool listed(std::span<const OpAndName> list, std::string_view op, std::string_view name) {
  return std::any_of(list.begin(), list.end(), [&](const OpAndName& entry) { return entry.op == op && entry.name == name; });
}
std::string_view operand_name(const OpDef& def, size_t k) { return def.operands[std::min(k, def.operands.size() - 1)].name; }
std::string_view output_name(const OpDef& def, size_t k) { return def.outputs[std::min(k, def.outputs.size() - 1)]; }

auto* const worst_errors = static_cast<WorstErrors*>(::testing::AddGlobalTestEnvironment(new WorstErrors));

// ||found - expected|| / ||expected|| <= bound. Where expected is exactly zero (nothing is right, everything is ignored), found has to be
// so up to terms that cancel. Returns whether that was a comparison with something: see Shown.
bool expect_close(const std::string& kind, const std::string& where, const std::vector<double>& found, const std::vector<double>& expected,
                  double bound) {
  EXPECT_EQ(found.size(), expected.size()) << where;
  if (found.size() != expected.size()) return false;
  if (norm(expected) == 0) {
    EXPECT_LE(norm(found), 1e-14) << where << ": " << kind;
    return false;
  }
  const double error = relative_error(found, expected);
  EXPECT_LE(error, bound) << where << ": " << kind;
  worst_errors->add(kind, where, error);
  return true;
}

// Zeros prove nothing: whatever is compared over the cases of an op has to be something else in at least one of them.
class Shown {
 public:
  explicit Shown(std::string_view op) : op_(op) {}
  Shown(const Shown&) = delete;
  Shown& operator=(const Shown&) = delete;
  ~Shown() {
    for (const auto& [name, is_shown] : names_) EXPECT_TRUE(is_shown) << op_ << ": " << name << " is zero in every case";
  }
  void add(std::string_view name, bool is_shown) {
    bool& all = names_[std::string(name)];
    all = all || is_shown;
  }

 private:
  std::string_view op_;
  std::map<std::string, bool> names_;
};

class OpCases : public ::testing::TestWithParam<uint16_t> {
 protected:
  void SetUp() override {
    cases = def.cases();
    ASSERT_FALSE(cases.empty()) << def.name << " has no case";
  }
  [[nodiscard]] std::string where(const OpCase& c, std::string_view what) const {
    return fmt::format("{} ({}) {}", def.name, c.name, what);
  }

  const OpDef& def = builtin_ops()[OpId{GetParam()}];
  std::vector<OpCase> cases;
};

std::vector<uint16_t> rows_of_table() {
  std::vector<uint16_t> rows;
  for (uint16_t row = 1; row < builtin_ops().size(); ++row) rows.push_back(row);
  return rows;
}
INSTANTIATE_TEST_SUITE_P(Table, OpCases, ::testing::ValuesIn(rows_of_table()),
                         [](const auto& row) { return std::string(builtin_ops()[OpId{row.param}].name); });

bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t k = 0; k < a.size(); ++k) {
    if (a[k].bits() != b[k].bits()) return false;
  }
  return true;
}

// Every element of every output is written, whatever was there before; operands stay as they are; and the bits depend neither on
// the run, nor on the number of threads, nor on the strides of rows, nor on outputs lying on operands.
TEST_P(OpCases, WriteAllAndRepeatBitwise) {
  for (const OpCase& c : cases) {
    for (const DType real : kReals) {
      const std::vector<Tensor> inputs = make_inputs(c, real);
      const std::vector<const Tensor*> in = operands_of(c, inputs);
      const KernelRun first = run_op(def, c.attr_words, in);
      EXPECT_EQ(first.error, "") << where(c, to_string(real));
      EXPECT_TRUE(first.operands_intact) << where(c, to_string(real));
      for (size_t k = 0; k < first.out.size(); ++k) {
        EXPECT_EQ(first.out[k].num_poisoned(), 0)
            << where(c, to_string(real)) << " leaves elements of output " << k << " unwritten (or NaN)";
      }
      for (const RunOptions& options :
           {RunOptions{}, RunOptions{.num_threads = 2}, RunOptions{.num_threads = 5}, RunOptions{.margins = true},
            RunOptions{.in_place = true}, RunOptions{.num_threads = 2, .margins = true, .in_place = true}}) {
        const KernelRun again = run_op(def, c.attr_words, in, options);
        EXPECT_TRUE(same_bits(first.out, again.out)) << where(c, to_string(real)) << " differs with threads=" << options.num_threads
                                                     << " margins=" << options.margins << " in_place=" << options.in_place;
        EXPECT_TRUE(again.margins_intact) << where(c, to_string(real)) << " writes between rows";
        EXPECT_TRUE(again.operands_intact) << where(c, to_string(real)) << " changes an operand";
      }
    }
  }
}

// f32 and bf16 kernels against the f64 kernel on the same (rounded) inputs.
TEST_P(OpCases, NarrowTypesMatchF64) {
  Shown shown(def.name);
  for (const OpCase& c : cases) {
    for (size_t narrow = 1; narrow < std::size(kReals); ++narrow) {
      const std::vector<Tensor> inputs = make_inputs(c, kReals[narrow]);
      std::vector<Tensor> wide = make_inputs(c, DType::kF64);
      for (size_t k = 0; k < wide.size(); ++k) {
        if (c.inputs[k].fill != Fill::kAbsent) wide[k] = inputs[k].with_dtype(wide[k].type().dtype);
      }
      const KernelRun found = run_op(def, c.attr_words, operands_of(c, inputs)), expected = run_op(def, c.attr_words, operands_of(c, wide));
      ASSERT_EQ(found.out.size(), expected.out.size());
      for (size_t k = 0; k < found.out.size(); ++k) {
        const std::string at = where(c, fmt::format("{} {}", to_string(kReals[narrow]), output_name(def, k)));
        EXPECT_EQ(found.out[k].type().shape, expected.out[k].type().shape) << at;
        if (!is_float(found.out[k].type().dtype)) {
          EXPECT_EQ(found.out[k].values(), expected.out[k].values()) << at;
        } else {
          shown.add(output_name(def, k), expect_close(fmt::format("{} kernel vs f64", to_string(kReals[narrow])), at, found.out[k].values(),
                                                      expected.out[k].values(), kPrecisionBound[narrow]));
        }
      }
    }
  }
}

// A case as a graph: one leaf per operand.
struct CaseGraph {
  Graph graph{builtin_ops()};
  std::vector<ValueId> in;
  std::vector<std::pair<ValueId, Tensor>> leaves;

  CaseGraph(const OpCase& c, const std::vector<Tensor>& inputs) {
    for (size_t k = 0; k < inputs.size(); ++k) {
      in.push_back(c.inputs[k].fill == Fill::kAbsent ? ValueId{} : add(LeafKind::kInput, fmt::format("in{}", k), inputs[k]));
    }
  }
  ValueId add(LeafKind kind, std::string_view name, const Tensor& tensor) {
    leaves.emplace_back(graph.add_leaf(kind, name, tensor.type()), tensor);
    return leaves.back().first;
  }
};

// Gradients of sum of <seed, out> with respect to every floating-point operand. Seeds are random, on every differentiable output
// that `out` has.
struct Differentiated {
  std::vector<Tensor> seeds;                    // empty ones where there is none
  std::vector<std::vector<double>> cotangents;  // empty: structurally zero
};
Differentiated differentiate(const OpDef& def, CaseGraph& g, std::span<const ValueId> out, std::span<const ValueId> restrict_to) {
  Differentiated result;
  std::vector<Seeded> seeded;
  for (size_t k = 0; k < out.size(); ++k) {
    result.seeds.emplace_back();
    if (!out[k].valid() || !restrict_to[k].valid() || !is_float(g.graph.type(out[k]).dtype) ||
        listed(kStatistics, def.name, output_name(def, k)))
      continue;
    const TensorType type = g.graph.type(out[k]);
    result.seeds[k] = Tensor(type, random_normal(type.shape.numel(), 500 + k));
    seeded.push_back({out[k], g.add(LeafKind::kSeed, fmt::format("seed{}", k), result.seeds[k])});
  }
  std::vector<ValueId> wrt;
  for (const ValueId v : g.in) {
    if (v.valid() && is_float(g.graph.type(v).dtype)) wrt.push_back(v);
  }
  const Result<std::vector<ValueId>> found = gradients(g.graph, seeded, wrt);
  GLIM_CHECK(bool(found), found.error().message);
  const std::vector<Tensor> values = evaluate(g.graph, g.leaves);
  size_t next = 0;
  for (const ValueId v : g.in) {
    result.cotangents.emplace_back();
    if (!v.valid() || !is_float(g.graph.type(v).dtype)) continue;
    const ValueId cotangent = (*found)[next++];
    if (cotangent.valid()) result.cotangents.back() = values[cotangent.index].values();
  }
  return result;
}

std::vector<ValueId> emit_op(const OpDef& def, CaseGraph& g, const OpCase& c) {
  const Result<NodeId> node = g.graph.emit(*g.graph.table().find(def.name), g.in, std::span<const uint32_t>(c.attr_words));
  GLIM_CHECK(bool(node), node.error().message);
  std::vector<ValueId> out;
  for (uint32_t k = 0; k < g.graph.node(*node).num_outputs; ++k) out.push_back(g.graph.output(*node, k));
  return out;
}

// Central differences of sum of <seed, out>: at up to kSamples elements of an operand.
TEST_P(OpCases, VjpMatchesFiniteDifferences) {
  if (def.diff == Diff::kNoVjp) return;
  constexpr int64_t kSamples = 40;
  constexpr double kStep = 1e-5;
  bool checked = false;
  Shown shown(def.name);
  for (const OpCase& c : cases) {
    const std::vector<Tensor> inputs = make_inputs(c, DType::kF64);
    CaseGraph g(c, inputs);
    const std::vector<ValueId> out = emit_op(def, g, c);
    // A result that is narrower than f64 is a staircase: it has no useful differences (the cases of cast).
    if (std::any_of(out.begin(), out.end(), [&](ValueId v) {
          const DType d = g.graph.type(v).dtype;
          return is_float(d) && d != DType::kF64;
        }))
      continue;
    if (std::none_of(out.begin(), out.end(), [&](ValueId v) { return is_float(g.graph.type(v).dtype); })) continue;
    const Differentiated analytic = differentiate(def, g, out, out);

    std::vector<Tensor> moved = inputs;
    const auto run = [&] { return run_op(def, c.attr_words, operands_of(c, moved)).out; };
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (c.inputs[k].fill == Fill::kAbsent || inputs[k].numel() == 0 || !is_float(inputs[k].type().dtype) ||
          listed(kConstants, def.name, operand_name(def, k)))
        continue;
      ASSERT_FALSE(analytic.cotangents[k].empty()) << where(c, operand_name(def, k)) << " has no gradient";
      std::vector<double> differences, cotangents;
      const int64_t count = inputs[k].numel(), samples = std::min(count, kSamples);
      for (int64_t s = 0; s < samples; ++s) {
        const int64_t i = count <= kSamples ? s : (s * 7919 + 13) % count;
        const double x = inputs[k].get(i);
        moved[k].set(i, x + kStep);
        const std::vector<Tensor> above = run();
        moved[k].set(i, x - kStep);
        const std::vector<Tensor> below = run();
        moved[k].set(i, x);
        double change = 0;
        for (size_t o = 0; o < above.size(); ++o) {
          for (int64_t e = 0; e < analytic.seeds[o].numel() && analytic.seeds[o].type() == above[o].type(); ++e) {
            change += analytic.seeds[o].get(e) * (above[o].get(e) - below[o].get(e));
          }
        }
        differences.push_back(change / (2 * kStep));
        cotangents.push_back(analytic.cotangents[k][static_cast<size_t>(i)]);
      }
      shown.add(operand_name(def, k),
                expect_close("vjp vs finite differences", where(c, operand_name(def, k)), cotangents, differences, kFiniteDifferenceBound));
      checked = true;
    }
  }
  EXPECT_TRUE(checked) << def.name << " has a vjp, but no case that tests it";
}

// A fused op against its composition: outputs in every dtype, gradients in f64.
TEST_P(OpCases, DecompositionAgrees) {
  if (def.decompose == nullptr) return;
  Shown shown(def.name);
  for (const OpCase& c : cases) {
    for (size_t real = 0; real < std::size(kReals); ++real) {
      const std::vector<Tensor> inputs = make_inputs(c, kReals[real]);
      CaseGraph fused(c, inputs), plain(c, inputs);
      const std::vector<ValueId> fused_out = emit_op(def, fused, c), plain_out = def.decompose(plain.graph, plain.in, c.attr_words);
      ASSERT_EQ(fused_out.size(), plain_out.size()) << where(c, "");
      const std::vector<Tensor> found = evaluate(fused.graph, fused.leaves), expected = evaluate(plain.graph, plain.leaves);
      for (size_t k = 0; k < fused_out.size(); ++k) {
        if (!plain_out[k].valid()) continue;
        const std::string at = where(c, fmt::format("{} {}", to_string(kReals[real]), output_name(def, k)));
        ASSERT_EQ(fused.graph.type(fused_out[k]), plain.graph.type(plain_out[k])) << at;
        const std::vector<double> a = found[fused_out[k].index].values(), b = expected[plain_out[k].index].values();
        if (is_float(fused.graph.type(fused_out[k]).dtype)) {
          shown.add(output_name(def, k),
                    expect_close(fmt::format("{} kernel vs decompose", to_string(kReals[real])), at, a, b, kDecomposeBound[real]));
        } else if (kReals[real] != DType::kBF16) {  // rounding to bf16 moves an argmax
          EXPECT_EQ(a, b) << at;
        }
      }
      if (kReals[real] != DType::kF64 || def.diff == Diff::kNoVjp) continue;
      const Differentiated a = differentiate(def, fused, fused_out, plain_out), b = differentiate(def, plain, plain_out, plain_out);
      for (size_t k = 0; k < inputs.size(); ++k) {
        if (a.cotangents[k].empty() || listed(kConstants, def.name, operand_name(def, k))) continue;
        shown.add(fmt::format("gradient of {}", operand_name(def, k)),
                  expect_close("f64 vjp vs decompose's", where(c, operand_name(def, k)), a.cotangents[k], b.cotangents[k], 1e-11));
      }
    }
  }
}

// kView: the output is that region of its operand. kAssemble: each operand is that region of the output.
TEST_P(OpCases, RegionsAreWhereTheySay) {
  for (const OpCase& c : cases) {
    const std::vector<Tensor> inputs = make_inputs(c, DType::kF32);
    const std::vector<const Tensor*> in = operands_of(c, inputs);
    std::vector<const TensorType*> types;
    for (const Tensor* operand : in) types.push_back(operand != nullptr ? &operand->type() : nullptr);
    const InferArgs args{types, c.attr_words};
    const std::vector<Tensor> out = run_op(def, c.attr_words, in).out;
    const auto expect_region = [&](const Tensor& part, const Tensor& whole, Region at) {
      const int64_t part_width = part.type().shape.rank == 2 ? part.type().shape[1] : 1,
                    width = whole.type().shape.rank == 2 ? whole.type().shape[1] : 1;
      for (int64_t i = 0; i < part.numel(); ++i) {
        EXPECT_EQ(part.get(i), whole.get((at.row + i / part_width) * width + at.column + i % part_width)) << where(c, "region");
      }
    };
    for (uint16_t k = 0; k < out.size(); ++k) {
      const AliasFact fact = def.memory.alias(args, k);
      if (fact.kind == AliasKind::kView) expect_region(out[k], *in[fact.operand], def.memory.region(args, k));
      for (uint16_t operand = 0; fact.kind == AliasKind::kAssemble && operand < in.size(); ++operand) {
        expect_region(*in[operand], out[k], def.memory.region(args, operand));
      }
    }
  }
}

// What infer accepts, the kernel can run: every extent of every case set to 0 and one more, wherever it occurs. What infer refuses
// has a message. Index values stay as they were, so some are out of range now: reported, and no stray access.
TEST_P(OpCases, KernelRunsWhateverInferAccepts) {
  for (const OpCase& c : cases) {
    std::vector<int64_t> extents;
    for (const CaseInput& input : c.inputs)
      extents.insert(extents.end(), input.shape.dims.begin(), input.shape.dims.begin() + input.shape.rank);
    for (const int64_t extent : extents) {
      for (const int64_t changed : {int64_t{0}, extent + 1}) {
        OpCase other = c;
        for (CaseInput& input : other.inputs) {
          for (int axis = 0; axis < input.shape.rank; ++axis) {
            if (input.shape[axis] == extent) input.shape.dims[static_cast<size_t>(axis)] = changed;
          }
          if (input.fill == Fill::kSegments && input.limit == extent) input.limit = changed;
          if (input.fill == Fill::kSegments && input.shape[0] < 2) input.fill = Fill::kZero;
        }
        const std::vector<Tensor> inputs = make_inputs(other, DType::kF32);
        const std::vector<const Tensor*> in = operands_of(other, inputs);
        std::vector<const TensorType*> types;
        for (const Tensor* operand : in) types.push_back(operand != nullptr ? &operand->type() : nullptr);
        const Result<Types> out = def.infer({types, other.attr_words});
        if (!out) {
          EXPECT_FALSE(out.error().message.empty());
          continue;
        }
        const KernelRun run = run_op(def, other.attr_words, in, {.margins = true});
        EXPECT_TRUE(run.margins_intact && run.operands_intact) << where(c, fmt::format("extent {} -> {}", extent, changed));
        for (const Tensor& tensor : run.out)
          EXPECT_EQ(tensor.num_poisoned(), 0) << where(c, fmt::format("extent {} -> {}", extent, changed));
      }
    }
  }
}

// Operands of other ranks and dtypes are refused or accepted, never crashed on.
TEST_P(OpCases, InferSurvivesAnyType) {
  for (const OpCase& c : cases) {
    const std::vector<Tensor> inputs = make_inputs(c, DType::kF32);
    for (size_t k = 0; k < inputs.size(); ++k) {
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kI64, DType::kI32}) {
        for (const Shape& shape : {inputs[k].type().shape, Shape{}, Shape{3}, Shape{2, 3}, Shape{1, 2, 3}, Shape{1, 1, 1, 2}}) {
          std::vector<TensorType> types;
          for (const Tensor& input : inputs) types.push_back(input.type());
          types[k] = {dtype, shape};
          std::vector<const TensorType*> in;
          for (size_t i = 0; i < types.size(); ++i) in.push_back(i != k && c.inputs[i].fill == Fill::kAbsent ? nullptr : &types[i]);
          const Result<Types> out = def.infer({in, c.attr_words});
          EXPECT_TRUE(out || !out.error().message.empty()) << where(c, "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace glim::testing
