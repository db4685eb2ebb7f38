// The backward kernel, in two passes that both recompute p = exp(s - lse): tiles of queries x heads give ct_q, tiles of keys x key-value
// heads give ct_k and ct_v. Seven products instead of five, but no sum crosses a task: the result does not depend on the number of
// threads, every gradient is rounded once, one long segment still fills all cores, and there is no workspace.
#include "ops/attention/tiles.h"

namespace glim::ops {
namespace {

template <class T>
struct Backward {
  using A = cpu::Accumulate<T>;
  const KernelArgs& k;
  AttentionAttrs attrs;
  int64_t head_size;

  [[nodiscard]] Visibility visibility() const { return {attrs.causal != 0, attrs.window}; }

  void zero(const TensorView& out, int64_t head, Range rows) const {
    for (int64_t i = rows.begin; i < rows.end; ++i) std::fill_n(out.row<T>(i) + head * head_size, head_size, T(A(0)));
  }
  void store(const TensorView& out, int64_t head, Range rows, const A* sums) const {
    for (int64_t i = rows.begin; i < rows.end; ++i, sums += head_size) {
      T* to = out.row<T>(i) + head * head_size;
      for (int64_t c = 0; c < head_size; ++c) to[c] = T(sums[c]);
    }
  }

  // p and ds = p * (dp - delta) * scale of one tile, [queries, keys] with a row stride of kKeyTile; delta_i = sum of out_i * ct_i.
  struct Tile {
    alignas(64) A p[kQueryTile * kKeyTile], ds[kQueryTile * kKeyTile];
  };
  void fill_tile(Tile& tile, int64_t head, Range queries, Range keys, Range segment, const cpu::Matrix<A>& q, const cpu::Matrix<A>& ct,
                 const cpu::Matrix<A>& key, const cpu::Matrix<A>& value, const A* delta) const {
    const int64_t rows = queries.end - queries.begin, width = keys.end - keys.begin;
    const A scale = static_cast<A>(attrs.scale);
    cpu::block_product<A>(rows, width, head_size, scale, q, transposed(key), tile.p, kKeyTile, cpu::Into::kOverwrite);
    cpu::block_product<A>(rows, width, head_size, A(1), ct, transposed(value), tile.ds, kKeyTile, cpu::Into::kOverwrite);
    for (int64_t i = 0; i < rows; ++i) {
      A *p = tile.p + i * kKeyTile, *ds = tile.ds + i * kKeyTile;
      const A lse = k.in[5].row<A>(queries.begin + i)[head];
      const Range seen = intersect(keys, visibility().keys(queries.begin + i, segment));
      const int64_t first = seen.empty() ? width : seen.begin - keys.begin, last = seen.empty() ? width : seen.end - keys.begin;
      for (int64_t j = first; j < last; ++j) {
        p[j] = cpu::fast_exp(p[j] - lse);
        ds[j] = p[j] * (ds[j] - delta[i]) * scale;
      }
      for (A* row : {p, ds}) {
        std::fill(row, row + first, A(0));
        std::fill(row + last, row + width, A(0));
      }
    }
  }

  void fill_delta(A* delta, int64_t head, Range queries) const {
    for (int64_t i = queries.begin; i < queries.end; ++i) {
      const T *out = k.in[4].row<T>(i) + head * head_size, *ct = k.in[6].row<T>(i) + head * head_size;
      delta[i - queries.begin] =
          static_cast<A>(cpu::lane_sum<A>(head_size, [&](int64_t c) { return static_cast<A>(out[c]) * static_cast<A>(ct[c]); }));
    }
  }

  void queries_part(int64_t head, Range queries, Range segment) const {
    const int64_t kv_head = head / (attrs.num_heads / attrs.num_kv_heads), rows = queries.end - queries.begin;
    Panel<A, T, kQueryTile> q_panel, ct_panel;
    Panel<A, T, kKeyTile> k_panel, v_panel;
    Tile tile;
    A delta[kQueryTile];
    alignas(64) A sums[kQueryTile * kMaxHeadSize];
    std::fill_n(sums, rows * head_size, A(0));
    const cpu::Matrix<A> q = q_panel.load(k.in[0], head, head_size, queries), ct = ct_panel.load(k.in[6], head, head_size, queries);
    fill_delta(delta, head, queries);
    const Range all = visibility().keys_of(queries, segment);
    for (int64_t begin = all.begin; begin < all.end; begin += kKeyTile) {
      const Range keys{begin, std::min(begin + kKeyTile, all.end)};
      const cpu::Matrix<A> key = k_panel.load(k.in[1], kv_head, head_size, keys), value = v_panel.load(k.in[2], kv_head, head_size, keys);
      fill_tile(tile, head, queries, keys, segment, q, ct, key, value, delta);
      cpu::block_product<A>(rows, head_size, keys.end - keys.begin, A(1), {tile.ds, kKeyTile}, key, sums, head_size, cpu::Into::kAdd);
    }
    store(k.out[0], head, queries, sums);
  }

  void keys_part(int64_t kv_head, Range keys, Range segment) const {
    const int64_t group = attrs.num_heads / attrs.num_kv_heads, width = keys.end - keys.begin;
    Panel<A, T, kQueryTile> q_panel, ct_panel;
    Panel<A, T, kKeyTile> k_panel, v_panel;
    Tile tile;
    A delta[kQueryTile];
    alignas(64) A key_sums[kKeyTile * kMaxHeadSize], value_sums[kKeyTile * kMaxHeadSize];
    std::fill_n(key_sums, width * head_size, A(0));
    std::fill_n(value_sums, width * head_size, A(0));
    const cpu::Matrix<A> key = k_panel.load(k.in[1], kv_head, head_size, keys), value = v_panel.load(k.in[2], kv_head, head_size, keys);
    const Range all = visibility().queries_of(keys, segment);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int64_t begin = all.begin; begin < all.end; begin += kQueryTile) {
        const Range queries{begin, std::min(begin + kQueryTile, all.end)};
        const int64_t rows = queries.end - queries.begin;
        const cpu::Matrix<A> q = q_panel.load(k.in[0], head, head_size, queries), ct = ct_panel.load(k.in[6], head, head_size, queries);
        fill_delta(delta, head, queries);
        fill_tile(tile, head, queries, keys, segment, q, ct, key, value, delta);
        cpu::block_product<A>(width, head_size, rows, A(1), {tile.ds, kKeyTile, true}, q, key_sums, head_size, cpu::Into::kAdd);
        cpu::block_product<A>(width, head_size, rows, A(1), {tile.p, kKeyTile, true}, ct, value_sums, head_size, cpu::Into::kAdd);
      }
    }
    store(k.out[1], kv_head, keys, key_sums);
    store(k.out[2], kv_head, keys, value_sums);
  }
};

}  // namespace

void attention_vjp_cpu(const KernelArgs& k) {
  const auto attrs = k.attrs<AttentionAttrs>();
  const int64_t num_rows = k.in[0].type.shape[0], head_size = k.in[0].type.shape[1] / attrs.num_heads;
  const Segments segments = Segments::checked(k.in[3], num_rows, k.context);
  const int64_t query_tasks = (num_rows + kQueryTile - 1) / kQueryTile * attrs.num_heads;
  const int64_t key_tasks = (num_rows + kKeyTile - 1) / kKeyTile * attrs.num_kv_heads;
  cpu::dispatch_float(k.in[0].type.dtype, [&](auto tag) {
    const Backward<typename decltype(tag)::Type> backward{k, attrs, head_size};
    // The longer tasks (a key tile serves all heads of its group) come first.
    k.context.parallel_for(key_tasks + query_tasks, [&](int64_t task) {
      if (task < key_tasks) {
        const int64_t head = task % attrs.num_kv_heads, begin = task / attrs.num_kv_heads * kKeyTile;
        segments.for_each_part(
            {begin, std::min(begin + kKeyTile, num_rows)}, [&](Range rows, Range segment) { backward.keys_part(head, rows, segment); },
            [&](Range rows) {
              backward.zero(k.out[1], head, rows);
              backward.zero(k.out[2], head, rows);
            });
      } else {
        const int64_t rest = task - key_tasks, head = rest % attrs.num_heads, begin = rest / attrs.num_heads * kQueryTile;
        segments.for_each_part(
            {begin, std::min(begin + kQueryTile, num_rows)}, [&](Range rows, Range segment) { backward.queries_part(head, rows, segment); },
            [&](Range rows) { backward.zero(k.out[0], head, rows); });
      }
    });
  });
}

}  // namespace glim::ops
