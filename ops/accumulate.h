#pragma once
// The type that arithmetic on a stored type runs in; a storage type that is no arithmetic type specialises it (Bf16, __nv_bfloat16).

namespace glim {

template <class T>
struct AccumulateOf {
  using Type = T;
};
template <class T>
using Accumulate = typename AccumulateOf<T>::Type;

}  // namespace glim
