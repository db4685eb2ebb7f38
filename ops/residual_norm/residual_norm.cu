// out = x + norm(y), normed = next(out), and the cotangents of both norms in one pass over their rows: norm_rows.cuh.
#include "ops/residual_norm/residual_norm_attrs.h"

#include "ops/rms_norm/norm_rows.cuh"

namespace glim::cuda {

void residual_norm(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = Accumulate<T>;
    const auto attrs = k.attrs<ops::ResidualNormAttrs>();
    const Rows<T> normed = attrs.next_eps > 0 ? rows_of<T>(k.out[1]) : Rows<T>{};
    launch_norm_rows<T>(stream(k),
                        {rows_of<const T>(k.in[0]),
                         rows_of<const T>(k.in[1]),
                         {k.in[2].as<T>(), attrs.eps, static_cast<A>(attrs.weight_offset)},
                         {k.in[3].as<T>(), attrs.next_eps, static_cast<A>(attrs.next_weight_offset)},
                         rows_of<T>(k.out[0]),
                         normed},
                        k.out[0].type.shape[0], k.out[0].type.shape[1]);
  });
}

void residual_norm_vjp(const KernelArgs& k) {
  dispatch_float(k.out[0].type.dtype, [&](auto tag) {
    using T = typename decltype(tag)::Type;
    using A = Accumulate<T>;
    const auto attrs = k.attrs<ops::ResidualNormAttrs>();
    const int64_t rows = k.out[0].type.shape[0], n = k.out[0].type.shape[1];
    const bool has_weight = k.in[2].present(), has_next = k.in[3].present();
    A* const workspace = reinterpret_cast<A*>(k.workspace.data());
    A* const partials = has_weight ? workspace : nullptr;
    A* const next_partials = has_next ? workspace + (has_weight ? ops::num_cuda_chunks(rows, n) * n : 0) : nullptr;
    const NormCotangents<T> operands{.s = rows_of<const T>(k.in[0]),
                                     .ct_a = rows_of<const T>(k.in[4]),
                                     .plus = k.in[5].present() ? rows_of<const T>(k.in[5]) : Rows<const T>{},
                                     .y = rows_of<const T>(k.in[1]),
                                     .next = {k.in[3].as<T>(), attrs.next_eps, static_cast<A>(attrs.next_weight_offset)},
                                     .norm = {k.in[2].as<T>(), attrs.eps, static_cast<A>(attrs.weight_offset)},
                                     .ct_s = rows_of<T>(k.out[0]),
                                     .ct_y = rows_of<T>(k.out[1]),
                                     .next_partials = next_partials,
                                     .partials = partials};
    launch_norm_rows_vjp<T>(stream(k), operands, rows, n, has_next ? k.out.back().as<T>() : nullptr,
                            has_weight ? k.out[2].as<T>() : nullptr);
  });
}

}  // namespace glim::cuda
