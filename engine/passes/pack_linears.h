#pragma once
#include "engine/pass.h"

namespace glim {

// Sibling linears that read the same rows become one product:
//   y_i = linear(x, w_i), i = 1..n   ->   y_1, .., y_n = split(linear(x, concat(w_1, .., w_n)))
// Law: same input, same attributes, same origin path (instance of a stack), no bias; every w_i is a parameter leaf of rank 2
// that nothing else reads (a tied weight lies where its other reader wants it). At most 8 parts, in tape order.
//
// Why before autodiff: the vjp of split and concat are concat and split, so the backward of a pack is one product for ct_x and
// one for ct_w by itself, where n linears would have n of each and n - 1 additions of ct_x.
// Why it costs no copy: the runtime lays the parameters arena out by the concats whose operands are all parameter leaves, so
// the w_i lie side by side and the concat is a view; the parts of the split are columns of the product (row_stride > width).
Result<Rewritten> pack_linears(const Graph& graph, const PassContext& context);

}  // namespace glim
