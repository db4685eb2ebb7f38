#pragma once
// Kernels over any number of tensors in one launch: their addresses travel as kernel parameters (up to 32,764 bytes since CUDA 12.1), so
// that a captured step needs no table in memory. A list that is longer takes several launches.
#include "ops/device/device.cuh"

namespace glim::cuda {

// The tensors of one launch. Entry has `int64_t first_tile`: its tiles are numbered from there on, over all launches.
template <class Entry>
struct TensorList {
  static constexpr int kCapacity = static_cast<int>((32764 - 256) / sizeof(Entry));
  int count = 0;
  Entry entries[kCapacity];

  // The entry that a tile belongs to: the last one that starts at it or before.
  __device__ const Entry& of_tile(int64_t tile) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (entries[middle].first_tile <= tile)
        low = middle;
      else
        high = middle;
    }
    return entries[low];
  }
};

}  // namespace glim::cuda
