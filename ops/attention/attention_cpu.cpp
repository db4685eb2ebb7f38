// The forward kernel: a task is one tile of queries of one head. It walks over tiles of keys with an online softmax
// (arXiv:2205.14135): m is the running maximum, l the running sum of exp(s - m), and the output is rescaled when m grows.
#include "ops/attention/tiles.h"

namespace glim::ops {

Segments Segments::checked(const TensorView& table, int64_t num_rows, KernelContext& context) {
  Segments segments{table.as<int32_t>(), table.type.shape[0] - 1, num_rows};
  for (int64_t g = 0; g <= segments.count; ++g) {
    const int32_t start = segments.starts[g], least = g == 0 ? 0 : segments.starts[g - 1];
    if (start < least || start > num_rows) {
      context.fail(fmt::format("segments[{}] is {}, which is outside [{}, {}]", g, start, least, num_rows));
      segments.count = 0;
      break;
    }
  }
  return segments;
}

namespace {

template <class T>
struct Forward {
  using A = cpu::Accumulate<T>;
  const KernelArgs& k;
  AttentionAttrs attrs;
  Segments segments;
  int64_t head_size;

  void zero(int64_t head, Range rows) const {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      std::fill_n(k.out[0].row<T>(i) + head * head_size, head_size, T(A(0)));
      k.out[1].row<A>(i)[head] = 0;
    }
  }

  // Turns row i of the scores of keys [tile.begin, tile.end) into exp(s - m), 0 where the key is not visible; returns the factor by
  // which what was summed before must shrink.
  A online_softmax(A* s, Range tile, Range visible, A& m, double& l) const {
    const Range seen = intersect(tile, visible);
    const int64_t first = seen.begin - tile.begin, count = seen.end - seen.begin;
    if (count <= 0) {
      std::fill_n(s, tile.end - tile.begin, A(0));
      return A(1);
    }
    std::fill(s, s + first, A(0));
    A* const p = s + first;
    const A top = std::max(m, cpu::lane_max<A>(count, [&](int64_t j) { return p[j]; }));
    const double sum = cpu::lane_sum<A>(count, [&](int64_t j) { return p[j] = cpu::fast_exp(p[j] - top); });
    std::fill(p + count, s + (tile.end - tile.begin), A(0));
    const A shrink = cpu::fast_exp(m - top);  // 0 at first: m starts at -infinity
    m = top;
    l = l * static_cast<double>(shrink) + sum;
    return shrink;
  }

  void part(int64_t head, Range queries, Range segment) const {
    const int64_t kv_head = head / (attrs.num_heads / attrs.num_kv_heads), rows = queries.end - queries.begin;
    const Visibility visibility{attrs.causal != 0, attrs.window};
    Panel<A, T, kQueryTile> q_panel;
    Panel<A, T, kKeyTile> k_panel, v_panel;
    alignas(64) A scores[kQueryTile * kKeyTile], sums[kQueryTile * kMaxHeadSize];
    A m[kQueryTile];
    double l[kQueryTile] = {};
    std::fill_n(m, kQueryTile, -std::numeric_limits<A>::infinity());
    std::fill_n(sums, rows * head_size, A(0));
    const cpu::Matrix<A> q = q_panel.load(k.in[0], head, head_size, queries);
    const Range keys = visibility.keys_of(queries, segment);
    for (int64_t begin = keys.begin; begin < keys.end; begin += kKeyTile) {
      const Range tile{begin, std::min(begin + kKeyTile, keys.end)};
      const int64_t width = tile.end - tile.begin;
      const cpu::Matrix<A> key = k_panel.load(k.in[1], kv_head, head_size, tile), value = v_panel.load(k.in[2], kv_head, head_size, tile);
      cpu::block_product<A>(rows, width, head_size, static_cast<A>(attrs.scale), q, transposed(key), scores, kKeyTile,
                            cpu::Into::kOverwrite);
      for (int64_t i = 0; i < rows; ++i) {
        const A shrink = online_softmax(scores + i * kKeyTile, tile, visibility.keys(queries.begin + i, segment), m[i], l[i]);
        for (int64_t c = 0; c < head_size; ++c) sums[i * head_size + c] *= shrink;
      }
      cpu::block_product<A>(rows, head_size, width, A(1), {scores, kKeyTile}, value, sums, head_size, cpu::Into::kAdd);
    }
    for (int64_t i = 0; i < rows; ++i) {
      T* out = k.out[0].row<T>(queries.begin + i) + head * head_size;
      const A inverse = static_cast<A>(1.0 / l[i]);
      for (int64_t c = 0; c < head_size; ++c) out[c] = T(sums[i * head_size + c] * inverse);
      k.out[1].row<A>(queries.begin + i)[head] = static_cast<A>(static_cast<double>(m[i]) + std::log(l[i]));
    }
  }
};

}  // namespace

void attention_cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<AttentionAttrs>();
  const int64_t num_rows = k.in[0].type.shape[0], head_size = k.in[0].type.shape[1] / attrs.num_heads;
  const Segments segments = Segments::checked(k.in[3], num_rows, k.context);
  const int64_t tiles = (num_rows + kQueryTile - 1) / kQueryTile;
  cpu::dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    const Forward<typename decltype(tag)::Type> forward{k, attrs, segments, head_size};
    k.context.parallel_for(tiles * attrs.num_heads, [&](int64_t task) {
      const int64_t head = task % attrs.num_heads, begin = task / attrs.num_heads * kQueryTile;
      segments.for_each_part(
          {begin, std::min(begin + kQueryTile, num_rows)}, [&](Range rows, Range segment) { forward.part(head, rows, segment); },
          [&](Range rows) { forward.zero(head, rows); });
    });
  });
}

}  // namespace glim::ops
