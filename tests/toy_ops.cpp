#include "tests/toy_ops.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "engine/passes/fuse.h"

namespace glim::toy {

DType drift_dtype = DType::kF32;

namespace {

// ---- declarations
constexpr std::string_view kOut[] = {"out"};
constexpr std::string_view kTwoOut[] = {"first", "second"};
constexpr OperandSpec kOne[] = {{"in"}};
constexpr OperandSpec kTwo[] = {{"in"}, {"other"}};
constexpr OperandSpec kThree[] = {{"x"}, {"front"}, {"ct"}};
constexpr OperandSpec kMany[] = {{"in", false, true}};
constexpr OperandSpec kChoose[] = {{"in"}, {"other", true}, {"last"}};
constexpr OperandSpec kLinearOperands[] = {{"in"}, {"weight"}, {"bias", true}};
constexpr std::string_view kModes[] = {"plain", "twice", "thrice"};
constexpr AttrSpec kScaleAttrs[] = {required(real_attr("factor", 1, "multiplies")), integer_attr("offset", 0, "is added"),
                                    bool_attr("negate", false, "changes the sign"), enum_attr("mode", 0, kModes, "how often")};
constexpr AttrSpec kAxis[] = {required(integer_attr("axis", 0, "0 or 1"))};
constexpr AttrSpec kSplitAttrs[] = {
    required(integer_attr("axis", 0, "0 or 1")), required(integer_attr("size0", 0, "extent")), integer_attr("size1", 0, "extent"),
    integer_attr("size2", 0, "extent"),          integer_attr("size3", 0, "extent"),           integer_attr("size4", 0, "extent"),
    integer_attr("size5", 0, "extent"),          integer_attr("size6", 0, "extent"),           integer_attr("size7", 0, "extent")};
constexpr AttrSpec kWide[] = {bool_attr("wide", false, "nothing")};

Result<Types> same(const InferArgs& a) {
  for (const TensorType* type : a.in) {
    if (type != nullptr && *type != *a.in[0])
      return invalid_argument("operand types differ: " + to_string(*a.in[0]) + " and " + to_string(*type));
  }
  return Types{*a.in[0]};
}
Result<Types> same_twice(const InferArgs& a) {
  GLIM_ASSIGN(Types types, same(a));
  types.push_back(types[0]);
  return types;
}
Result<Types> infer_concat(const InferArgs& a) {
  const int64_t axis = integer_at(a.attr_words, 0);
  if (a.in.empty() || axis < 0 || axis > 1 || a.in[0]->shape.rank != 2)
    return invalid_argument("needs operands of rank 2 and an axis of 0 or 1");
  TensorType out = *a.in[0];
  out.shape.dims[static_cast<size_t>(axis)] = 0;
  for (const TensorType* type : a.in) {
    if (type->shape.rank != 2 || type->shape[1 - static_cast<int>(axis)] != out.shape[1 - static_cast<int>(axis)])
      return invalid_argument("extents differ");
    out.shape.dims[static_cast<size_t>(axis)] += type->shape[static_cast<int>(axis)];
  }
  return Types{out};
}
Result<Types> infer_split(const InferArgs& a) {
  const int64_t axis = integer_at(a.attr_words, 0);
  if (axis < 0 || axis > 1 || a.in[0]->shape.rank != 2) return invalid_argument("needs an operand of rank 2 and an axis of 0 or 1");
  Types parts;
  int64_t left = a.in[0]->shape[static_cast<int>(axis)];
  for (size_t k = 1; k < 9 && integer_at(a.attr_words, k) != 0; ++k) {
    const int64_t size = integer_at(a.attr_words, k);
    if (size < 0 || size > left) return invalid_argument("the parts do not fit");
    TensorType part = *a.in[0];
    part.shape.dims[static_cast<size_t>(axis)] = size;
    parts.push_back(part);
    left -= size;
  }
  if (left != 0 || parts.empty()) return invalid_argument("the parts do not fill the axis");
  return parts;
}
Result<Types> infer_linear(const InferArgs& a) {
  const Shape& in = a.in[0]->shape;
  const Shape& weight = a.in[1]->shape;
  if (in.rank != 2 || weight.rank != 2 || in[1] != weight[1])
    return invalid_argument("shapes do not fit: " + to_string(in) + " and " + to_string(weight));
  if (a.in[2] != nullptr && a.in[2]->shape != Shape{weight[0]}) return invalid_argument("the bias does not fit");
  return Types{{a.in[0]->dtype, {in[0], weight[0]}}};
}
Result<Types> infer_drift(const InferArgs& a) { return Types{{drift_dtype, a.in[0]->shape}}; }

void no_kernel(const KernelArgs&) {}
Cost free_of_cost(const CostArgs&) { return {}; }
AliasFact none(const InferArgs&, uint16_t) { return {}; }
AliasFact must(const InferArgs&, uint16_t) { return {AliasKind::kMust, 0}; }
std::vector<OpCase> no_cases() { return {}; }

// add(scale(in), other) -> scale_add(in, other); plain mode only. Does not ask who else reads the scale: that is the driver's business.
std::optional<FusionMatch> match_scale_add(const FuseArgs& a) {
  const std::span<const ValueId> in = a.graph.inputs(a.root);
  const NodeId scale = a.graph.producer(in[0]);
  if (a.graph.def(scale).name != "scale" || integer_at(a.graph.attr_words(scale), 3) != 0) return std::nullopt;
  const std::span<const uint32_t> words = a.graph.attr_words(scale);
  return FusionMatch{*a.graph.table().find("scale_add"),
                     {a.graph.inputs(scale)[0], in[1]},
                     {words.begin(), words.end()},
                     {{a.graph.output(a.root), 0}},
                     {scale}};
}
// front and back(x, front(x), ct) -> front_back(x, ct). Says nothing of a ct that depends on front: that is the driver's business.
std::optional<FusionMatch> match_front_back(const FuseArgs& a) {
  const std::span<const ValueId> in = a.graph.inputs(a.root);
  const NodeId front = a.graph.producer(in[1]);
  if (a.graph.def(front).name != "front" || a.graph.inputs(front)[0] != in[0]) return std::nullopt;
  return FusionMatch{
      *a.graph.table().find("front_back"), {in[0], in[2]}, {}, {{a.graph.output(front), 0}, {a.graph.output(a.root), 1}}, {front}};
}
constexpr FusionPattern kScaleAddFusions[] = {{"add", match_scale_add, false}};
constexpr FusionPattern kFrontBackFusions[] = {{"back", match_front_back, true}};

constexpr OpDef op(std::string_view name, std::span<const OperandSpec> operands, InferFn infer, std::span<const AttrSpec> attrs = {},
                   Role role = Role::kNone, AliasFact (*alias)(const InferArgs&, uint16_t) = none,
                   std::span<const std::string_view> outputs = kOut, std::span<const FusionPattern> fusions = {}) {
  return {.name = name,
          .summary = "toy",
          .operands = operands,
          .outputs = outputs,
          .attrs = attrs,
          .diff = Diff::kNoVjp,
          .infer = infer,
          .fusions = fusions,
          .cpu = no_kernel,
          .cost = free_of_cost,
          .memory = {alias},
          .precision = Precision::kExact,
          .role = role,
          .shard = Shard::kNone,
          .cases = no_cases};
}
constexpr OpDef kOps[] = {
    op("add", kTwo, same, {}, Role::kAdd),
    op("mul", kTwo, same),
    op("scale", kOne, same, kScaleAttrs),
    op("scale_add", kTwo, same, kScaleAttrs, Role::kNone, none, kOut, kScaleAddFusions),
    op("sum_difference", kTwo, same_twice, {}, Role::kNone, none, kTwoOut),
    op("choose", kChoose, same),
    op("concat", kMany, infer_concat, kAxis, Role::kConcat),
    op("split", kOne, infer_split, kSplitAttrs, Role::kSplit),
    op("linear", kLinearOperands, infer_linear, kWide, Role::kLinear),
    op("accumulate", kTwo, same, {}, Role::kNone, must),
    op("all_reduce", kOne, same, {}, Role::kCollective),
    op("front", kOne, same),
    op("back", kThree, same),
    op("front_back", kTwo, same_twice, {}, Role::kNone, none, kTwoOut, kFrontBackFusions),
    op("drift", kOne, infer_drift),
};

// ---- meaning
using Values = std::vector<uint64_t>;

uint64_t scaled(uint64_t x, std::span<const uint32_t> words) {
  const uint64_t factor = std::bit_cast<uint64_t>(real_at(words, 0)) | 1;
  uint64_t y = x;
  for (int64_t k = 0; k <= integer_at(words, 3); ++k) y *= factor;
  y += static_cast<uint64_t>(integer_at(words, 1));
  return integer_at(words, 2) != 0 ? -y : y;
}

Values element_wise(size_t n, const std::function<uint64_t(size_t)>& f) {
  Values out(n);
  for (size_t i = 0; i < n; ++i) out[i] = f(i);
  return out;
}

// Copies a block of `rows` x `columns`.
void copy_block(const Values& from, int64_t from_width, int64_t from_row, int64_t from_column, Values& to, int64_t to_width, int64_t to_row,
                int64_t to_column, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      to[static_cast<size_t>((to_row + r) * to_width + to_column + c)] =
          from[static_cast<size_t>((from_row + r) * from_width + from_column + c)];
    }
  }
}

std::vector<Values> evaluate(const Graph& g, NodeId n, const std::vector<const Values*>& in) {
  const std::string_view name = g.def(n).name;
  const std::span<const uint32_t> words = g.attr_words(n);
  const auto size = static_cast<size_t>(g.type(g.output(n)).shape.numel());
  const auto at = [&](size_t k, size_t i) { return (*in[k])[i]; };
  if (name == "add" || name == "accumulate") return {element_wise(size, [&](size_t i) { return at(0, i) + at(1, i); })};
  if (name == "mul") return {element_wise(size, [&](size_t i) { return at(0, i) * at(1, i); })};
  if (name == "scale") return {element_wise(size, [&](size_t i) { return scaled(at(0, i), words); })};
  if (name == "scale_add") return {element_wise(size, [&](size_t i) { return scaled(at(0, i), words) + at(1, i); })};
  if (name == "all_reduce") return {element_wise(size, [&](size_t i) { return 3 * at(0, i); })};
  if (name == "choose") return {element_wise(size, [&](size_t i) { return at(0, i) * 5 + (in[1] != nullptr ? at(1, i) : 7) * at(2, i); })};
  if (name == "sum_difference") {
    return {element_wise(size, [&](size_t i) { return at(0, i) + at(1, i); }),
            element_wise(size, [&](size_t i) { return at(0, i) - at(1, i); })};
  }
  const auto front = [](uint64_t x) { return x * x + 1; };
  if (name == "front") return {element_wise(size, [&](size_t i) { return front(at(0, i)); })};
  if (name == "back") return {element_wise(size, [&](size_t i) { return at(1, i) * at(2, i) + at(0, i); })};
  if (name == "front_back") {
    return {element_wise(size, [&](size_t i) { return front(at(0, i)); }),
            element_wise(size, [&](size_t i) { return front(at(0, i)) * at(1, i) + at(0, i); })};
  }
  const auto shape = [&](ValueId v) -> const Shape& { return g.type(v).shape; };
  if (name == "concat" || name == "split") {
    const bool rows = integer_at(words, 0) == 0;
    int64_t begin = 0;
    std::vector<Values> out;
    if (name == "concat") {
      out.emplace_back(size);
      for (size_t k = 0; k < in.size(); ++k) {
        const Shape& part = shape(g.inputs(n)[k]);
        copy_block(*in[k], part[1], 0, 0, out[0], shape(g.output(n))[1], rows ? begin : 0, rows ? 0 : begin, part[0], part[1]);
        begin += part[rows ? 0 : 1];
      }
    } else {
      for (uint32_t k = 0; k < g.node(n).num_outputs; ++k) {
        const Shape& part = shape(g.output(n, k));
        out.emplace_back(static_cast<size_t>(part.numel()));
        copy_block(*in[0], shape(g.inputs(n)[0])[1], rows ? begin : 0, rows ? 0 : begin, out[k], part[1], 0, 0, part[0], part[1]);
        begin += part[rows ? 0 : 1];
      }
    }
    return out;
  }
  GLIM_CHECK(name == "linear", "the interpreter does not know this op");
  const auto width = static_cast<size_t>(shape(g.inputs(n)[0])[1]), columns = static_cast<size_t>(shape(g.output(n))[1]);
  return {element_wise(size, [&](size_t i) {
    uint64_t sum = in[2] != nullptr ? at(2, i % columns) : 0;
    for (size_t k = 0; k < width; ++k) sum += at(0, i / columns * width + k) * at(1, i % columns * width + k);
    return sum;
  })};
}

}  // namespace

const OpTable& table() {
  static const OpTable ops = [] {
    OpTable all;
    for (const OpDef& def : kOps) GLIM_CHECK(bool(all.add(def)), "toy table");
    return all;
  }();
  return ops;
}

std::vector<std::vector<uint64_t>> interpret(const Graph& graph) {
  std::vector<Values> values(graph.num_values());
  for (uint32_t index = 0; index < graph.num_nodes(); ++index) {
    const NodeId n{index};
    if (graph.is_leaf(n)) {
      const ValueId v = graph.output(n);
      std::mt19937_64 random(std::hash<std::string>{}(graph.leaf(v).name));
      values[v.index].resize(static_cast<size_t>(graph.type(v).shape.numel()));
      for (uint64_t& x : values[v.index]) x = random();
      continue;
    }
    std::vector<const Values*> in;
    for (const ValueId v : graph.inputs(n)) in.push_back(v.valid() ? &values[v.index] : nullptr);
    std::vector<Values> out = evaluate(graph, n, in);
    for (uint32_t k = 0; k < out.size(); ++k) values[graph.output(n, k).index] = std::move(out[k]);
  }
  return values;
}

Graph random_graph(std::mt19937_64& random, size_t num_nodes) {
  Graph g(table());
  const auto below = [&](size_t n) { return static_cast<size_t>(random() % n); };
  const auto dim = [&] { return static_cast<int64_t>(2 + below(2)); };
  const auto leaf = [&](LeafKind kind, Shape shape) {
    return g.add_leaf(kind, "leaf " + std::to_string(g.leaves().size()), {DType::kF32, shape});
  };
  const auto any = [&] {
    return ValueId{static_cast<uint32_t>(g.num_values() - 1 - std::min(below(g.num_values()), below(g.num_values())))};
  };
  // A value of the same type as `v`; `v` itself if there is no luck.
  const auto like = [&](ValueId v) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      const ValueId other = any();
      if (g.type(other) == g.type(v)) return other;
    }
    return v;
  };
  for (int k = 0; k < 6; ++k) leaf(k % 2 == 0 ? LeafKind::kInput : LeafKind::kParameter, {dim(), dim()});
  while (g.num_nodes() < num_nodes) {
    if (below(6) == 0)
      g.set_origin(
          {g.intern("stack." + std::to_string(below(3))), g.intern("toy.toml"), static_cast<int32_t>(below(50)), 1, below(4) == 0});
    const OpId op{static_cast<uint16_t>(1 + below(table().size() - 2))};  // neither leaf nor drift
    const OpDef& def = table()[op];
    const ValueId first = any();
    std::vector<ValueId> in{first};
    std::vector<uint32_t> words = default_words(def.attrs);
    if (def.name == "linear") {
      if (g.type(first).shape.rank != 2) continue;
      in.push_back(leaf(LeafKind::kParameter, {dim(), g.type(first).shape[1]}));
      if (below(4) == 0) in.push_back(leaf(LeafKind::kParameter, {g.type(in[1]).shape[0]}));
      const size_t siblings = below(4);
      for (size_t k = 0; k < siblings; ++k) {
        const ValueId sibling[] = {first, leaf(LeafKind::kParameter, {dim(), g.type(first).shape[1]})};
        GLIM_CHECK(bool(g.emit(op, sibling, std::span<const uint32_t>(words))), "sibling");
      }
    } else if (def.name == "back" && below(3) != 0) {  // of a front, so that they may join
      const ValueId operand[] = {first};
      const Result<NodeId> front = g.emit(*table().find("front"), operand, std::span<const uint32_t>{});
      in = {first, g.output(*front), like(first)};
    } else if (def.name == "add" && below(3) != 0) {  // of a scale, so that they may fuse
      const OpId scale = *table().find("scale");
      std::vector<uint32_t> plain = default_words(table()[scale].attrs);
      set_integer(plain, 1, static_cast<int64_t>(below(3)));
      const ValueId operand[] = {first};
      in = {g.output(*g.emit(scale, operand, std::span<const uint32_t>(plain))), like(first)};
    } else if (def.name == "concat") {
      in.push_back(any());
      if (g.type(in[0]).shape.numel() + g.type(in[1]).shape.numel() > 64) continue;  // extents would explode
      set_integer(words, 0, static_cast<int64_t>(below(2)));
    } else if (def.name == "split") {
      const auto axis = static_cast<int64_t>(below(2));
      const int64_t extent = g.type(first).shape[static_cast<int>(axis)];
      if (extent < 2 || g.type(first).shape.rank != 2) continue;
      set_integer(words, 0, axis);
      set_integer(words, 1, 1);
      set_integer(words, 2, extent - 1);
    } else {
      while (in.size() < def.operands.size()) in.push_back(def.operands[in.size()].optional && below(2) == 0 ? ValueId{} : like(first));
      if (!def.attrs.empty()) {
        constexpr double kFactors[] = {1, 0.1, -0.0, 3.87, 1e300};
        set_real(words, 0, kFactors[below(5)]);
        set_integer(words, 1, static_cast<int64_t>(below(3)) - 1);
        set_integer(words, 2, static_cast<int64_t>(below(2)));
        set_integer(words, 3, static_cast<int64_t>(below(4) == 0 ? 1 + below(2) : 0));
      }
    }
    (void)bool(g.emit(op, in, std::span<const uint32_t>(words)));  // what does not fit is refused by infer
  }
  const size_t num_outputs = 1 + below(4);
  for (size_t k = 0; k < num_outputs; ++k) g.add_output("output " + std::to_string(k), any());
  for (const Leaf& state : std::vector<Leaf>(g.leaves().begin(), g.leaves().end())) {
    if (is_state(state.kind) && below(3) == 0) g.add_update(state.value, like(state.value));
  }
  return g;
}

}  // namespace glim::toy
