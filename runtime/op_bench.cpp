#include "runtime/op_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/print.h"
#include "ops/bf16.h"
#include "runtime/random.h"

namespace glim {
namespace {

constexpr double kRotatedBytes[] = {64e6, 256e6};  // by Backend: beyond the last cache
constexpr double kMostCopies[] = {8, 32};
constexpr double kRotatedFlops[] = {5e8, 4e12};  // where these take long, memory does not
constexpr int64_t kExtents[] = {512, 4096};
constexpr int64_t kCopyBytes[] = {int64_t{128} << 20, int64_t{1} << 30};
constexpr int64_t kProductExtents[] = {512, 8192};
constexpr int kRounds = 3;
constexpr int64_t kPattern = 65536;  // values that are drawn; tensors repeat them
constexpr double kIgnored = -100;

size_t row(Backend backend) { return static_cast<size_t>(backend); }

DType dtype_of(const CaseInput& input, DType real) {
  switch (input.dtype) {
    case CaseDType::kReal: return real;
    case CaseDType::kAccumulation: return accumulation_dtype(real);
    case CaseDType::kI32: return DType::kI32;
    case CaseDType::kI64: return DType::kI64;
    case CaseDType::kF64: return DType::kF64;
  }
  return real;
}

bool fits(const OpDef& def, const OpCase& op_case, DType real) {
  std::vector<TensorType> types;
  for (const CaseInput& input : op_case.inputs) types.push_back({dtype_of(input, real), input.shape});
  std::vector<const TensorType*> in;
  for (size_t k = 0; k < types.size(); ++k) in.push_back(op_case.inputs[k].fill == Fill::kAbsent ? nullptr : &types[k]);
  return bool(def.infer({in, op_case.attr_words, def.user_data}));
}

// Element i of an input with `count` of them.
double value_of(const CaseInput& input, int64_t rows, int64_t count, uint64_t stream, int64_t i) {
  const double draw = uniform_draw(stream, static_cast<uint64_t>(i));
  const auto below = [&](int64_t limit) {
    return static_cast<double>(static_cast<int64_t>(draw * static_cast<double>(std::max<int64_t>(limit, 1))));
  };
  switch (input.fill) {
    case Fill::kAbsent:
    case Fill::kZero: return 0;
    case Fill::kNormal: return normal_draw(stream, static_cast<uint64_t>(i));
    case Fill::kPositive: return 0.2 + draw;
    case Fill::kIndices: return below(input.limit);
    case Fill::kLabels: return i % 4 == 2 ? kIgnored : below(input.limit);
    case Fill::kSegments: return static_cast<double>((input.limit > 0 ? input.limit : rows) * i / std::max<int64_t>(count - 1, 1));
    case Fill::kPositions: return static_cast<double>(i);
    case Fill::kOne: return 1;
  }
  return 0;
}

std::vector<std::byte> contents(const CaseInput& input, const TensorType& type, int64_t rows, uint64_t stream) {
  std::vector<std::byte> bytes(type.bytes());
  const int64_t count = type.shape.numel();
  const bool repeats = input.fill != Fill::kSegments && input.fill != Fill::kPositions;
  const auto fill = [&](auto element) {
    using T = decltype(element);
    const int64_t drawn = repeats ? std::min(count, kPattern) : count;
    for (int64_t i = 0; i < drawn; ++i) {
      element = T(value_of(input, rows, count, stream, i));
      std::memcpy(bytes.data() + static_cast<size_t>(i) * sizeof(T), &element, sizeof(T));
    }
    for (size_t done = static_cast<size_t>(drawn) * sizeof(T); done < bytes.size();) {
      const size_t next = std::min(done, bytes.size() - done);
      std::memcpy(bytes.data() + done, bytes.data(), next);
      done += next;
    }
  };
  switch (type.dtype) {
    case DType::kF64: fill(double{}); break;
    case DType::kF32: fill(float{}); break;
    case DType::kBF16: fill(Bf16{}); break;
    case DType::kI64: fill(int64_t{}); break;
    case DType::kI32: fill(int32_t{}); break;
  }
  return bytes;
}

std::string leaf_name(int copy, size_t operand) { return fmt::format("{}.{}", copy, operand); }

// `copies` nodes of the op, each with operands and outputs of its own. An operand that an output takes over is state.
Result<Graph> repeated(const OpTable& table, OpId op, const OpCase& op_case, DType real, int copies) {
  Graph graph(table);
  for (int copy = 0; copy < copies; ++copy) {
    std::vector<ValueId> in;
    std::vector<TensorType> types;
    for (const CaseInput& input : op_case.inputs) types.push_back({dtype_of(input, real), input.shape});
    std::vector<const TensorType*> operands;
    for (size_t k = 0; k < types.size(); ++k) operands.push_back(op_case.inputs[k].fill == Fill::kAbsent ? nullptr : &types[k]);
    GLIM_ASSIGN(const Types out, table[op].infer({operands, op_case.attr_words, table[op].user_data}));
    std::vector<bool> taken_over(types.size(), false);
    const InferArgs args{operands, op_case.attr_words, table[op].user_data};
    for (uint16_t k = 0; k < out.size(); ++k) {
      const AliasFact fact = table[op].memory.alias(args, k);
      if (fact.kind == AliasKind::kMust) taken_over[fact.operand] = true;
    }
    for (size_t k = 0; k < types.size(); ++k) {
      const LeafKind kind = taken_over[k] ? LeafKind::kGradient : LeafKind::kInput;
      in.push_back(operands[k] != nullptr ? graph.add_leaf(kind, leaf_name(copy, k), types[k]) : ValueId{});
    }
    GLIM_ASSIGN(const NodeId node, graph.emit(op, in, std::span<const uint32_t>(op_case.attr_words)));
    for (uint16_t k = 0; k < out.size(); ++k) {
      const AliasFact fact = table[op].memory.alias(args, k);
      if (fact.kind == AliasKind::kMust)
        graph.add_update(in[fact.operand], graph.output(node, k));
      else
        graph.add_output(fmt::format("{}.out.{}", copy, k), graph.output(node, k));
    }
  }
  return graph;
}

}  // namespace

OpCase grown(const OpDef& def, const OpCase& op_case, DType real, int64_t extent) {
  std::vector<int64_t> extents, fixed;
  for (const CaseInput& input : op_case.inputs) {
    std::vector<int64_t>& list = input.fill == Fill::kSegments ? fixed : extents;
    if (input.fill != Fill::kAbsent) list.insert(list.end(), input.shape.dims.begin(), input.shape.dims.begin() + input.shape.rank);
  }
  std::sort(extents.begin(), extents.end());
  extents.erase(std::unique(extents.begin(), extents.end()), extents.end());
  OpCase result = op_case;
  for (const int64_t each : extents) {
    if (each <= 1 || each >= extent || std::find(fixed.begin(), fixed.end(), each) != fixed.end()) continue;
    OpCase larger = result;
    for (size_t k = 0; k < larger.inputs.size(); ++k) {
      const CaseInput& before = op_case.inputs[k];
      CaseInput& input = larger.inputs[k];
      for (int axis = 0; axis < input.shape.rank && before.fill != Fill::kAbsent; ++axis) {
        if (before.shape[axis] == each) input.shape.dims[static_cast<size_t>(axis)] = extent;
      }
      if (before.limit == each) input.limit = extent;
    }
    if (fits(def, larger, real)) result = std::move(larger);
  }
  return result;
}

Result<std::optional<OpTiming>> time_case(const OpTable& table, OpId op, const OpCase& op_case, const OpBenchOptions& options) {
  const OpDef& def = table[op];
  const size_t at = row(options.backend);
  if (!fits(def, op_case, options.real)) return std::optional<OpTiming>{};
  const OpCase large = grown(def, op_case, options.real, options.extent > 0 ? options.extent : kExtents[at]);
  GLIM_ASSIGN(const Graph one, repeated(table, op, large, options.real, 1));
  OpTiming timing;
  timing.cost = one.cost({static_cast<uint32_t>(one.num_nodes()) - 1});
  const double bytes = std::max(1.0, timing.cost.bytes_read + timing.cost.bytes_written);
  const int copies = static_cast<int>(
      std::clamp(std::min(kRotatedBytes[at] / bytes, kRotatedFlops[at] / std::max(1.0, timing.cost.flops)), 1.0, kMostCopies[at]));
  GLIM_ASSIGN(Graph graph, repeated(table, op, large, options.real, copies));
  Program program{"bench", std::move(graph), {}, {}};
  const Graph* const graphs[] = {&program.graph};
  const LeafLayout layout = make_leaf_layout(graphs);
  program.schedule = make_schedule(program.graph);
  program.plan = plan_memory(program.graph, program.schedule, layout);
  if (std::find(program.plan.node_runs.begin(), program.plan.node_runs.end(), true) == program.plan.node_runs.end())
    return std::optional<OpTiming>{};
  const Program* const programs[] = {&program};
  GLIM_ASSIGN(const Machine machine, open_machine(options.backend, programs, options.num_threads, ProductAlgorithms::kTimed));
  for (size_t k = 0; k < large.inputs.size(); ++k) {
    const CaseInput& input = large.inputs[k];
    if (input.fill == Fill::kAbsent) continue;
    const TensorType type{dtype_of(input, options.real), input.shape};
    timing.shapes += (timing.shapes.empty() ? "" : " ") + to_string(type);
    const std::vector<std::byte> values = contents(input, type, large.inputs[0].shape[0], make_stream(k, def.name));
    for (int copy = 0; copy < copies; ++copy) {
      const LeafSlot* slot = layout.find(leaf_name(copy, k));
      if (slot != nullptr) GLIM_TRY(machine.executor->write(contiguous_view(machine.arenas.at(slot->arena, slot->offset), type), values));
    }
  }
  const Executable executable(program, machine.arenas);
  GLIM_TRY(machine.executor->run(executable));
  GLIM_ASSIGN(const double first, machine.executor->time(executable, 1));
  const int count = static_cast<int>(std::clamp(options.seconds / kRounds / std::max(first, 1e-7), 1.0, 1e4));
  timing.seconds = first / copies;
  for (int round = 0; round < kRounds; ++round) {
    GLIM_ASSIGN(const double seconds, machine.executor->time(executable, count));
    timing.seconds = std::min(timing.seconds, seconds / count / copies);
  }
  return std::optional<OpTiming>(std::move(timing));
}

Result<Roofline> measure_roofline(const OpTable& table, const OpBenchOptions& options) {
  const size_t at = row(options.backend);
  const auto measure = [&](const char* name, const OpCase& op_case) -> Result<OpTiming> {
    const std::optional<OpId> op = table.find(name);
    GLIM_CHECK(op.has_value(), "the op table has no op to measure the machine with");
    OpBenchOptions as_given = options;
    as_given.extent = 1;
    GLIM_ASSIGN(std::optional<OpTiming> timing, time_case(table, *op, op_case, as_given));
    GLIM_CHECK(timing.has_value(), "nothing ran");
    return *std::move(timing);
  };
  const int64_t size = kProductExtents[at], columns = 4096;
  const int64_t rows = kCopyBytes[at] / columns / static_cast<int64_t>(size_of(options.real));
  GLIM_ASSIGN(const OpTiming copy, measure("copy", {"large", {{{rows, columns}}}, {}}));
  const OpDef& matmul = table[*table.find("matmul")];
  GLIM_ASSIGN(const OpTiming product,
              measure("matmul", {"large", {{{size, size}}, {{size, size}}, {{1}, Fill::kAbsent}}, matmul.cases().front().attr_words}));
  return Roofline{(copy.cost.bytes_read + copy.cost.bytes_written) / copy.seconds, product.cost.flops / product.seconds};
}

}  // namespace glim
