#pragma once
// Tiles of bf16 in shared memory, as Hopper's matrix instructions read them.
//
// A tile [rows, kHead] consists of panels of 64 columns; a row of a panel is 128 bytes, and its 16-byte chunk c lies at c ^ (row % 8) (the
// 128-byte swizzle). Tiles start at multiples of 1024 bytes. The same tile serves as an operand whose depth is its columns (q and k in
// q k^T) and, transposed by the instruction, as one whose depth is its rows (v in p v).
#include "ops/attention/pipeline.cuh"

namespace glim::cuda {

constexpr int kPanelColumns = 64, kPanelRowBytes = 128, kTileAlignment = 1024;
template <int kRows, int kHead>
constexpr int kTileBytes = kRows* kHead * 2;

// Byte offset of (row, column) in a tile; column is even, and may be any of a chunk of 8.
template <int kRows>
__device__ uint32_t tile_offset(int row, int column) {
  return column / kPanelColumns * kRows * kPanelRowBytes + row * kPanelRowBytes + ((column % kPanelColumns / 8) ^ (row % 8)) * 16 +
         column % 8 * 2;
}

__device__ inline void copy_16_bytes(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ inline void copy_8_bytes(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(exists ? 8 : 0) : "memory");
}

// One head of a tensor: row i starts at data + i * stride. `by_chunks`: every 8 columns are 16 aligned bytes.
struct HeadRows {
  const Bf16* data;
  int64_t stride;
  int head_size;
  bool by_chunks;
};
__device__ inline HeadRows head_of(const Rows<const Bf16>& rows, int head, int head_size) {
  const bool aligned = reinterpret_cast<uintptr_t>(rows.data) % 16 == 0 && rows.stride % 8 == 0 && head_size % 8 == 0;
  return {rows.data + static_cast<int64_t>(head) * head_size, rows.stride, head_size, aligned};
}

// Starts copying rows [first, first + kRows) in a warpgroup; rows outside of `valid` and columns past the head size become 0.
template <int kRows, int kHead>
__device__ void load_tile(uint32_t tile, const HeadRows& from, int first, RowSpan valid) {
  constexpr int kChunks = kHead / 8, kStep = kWarpgroup / kChunks;
  static_assert(kStep % 8 == 0 && kRows % kStep == 0);
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, column = thread % kChunks * 8, begin = thread / kChunks;
  const uint32_t to = tile + tile_offset<kRows>(begin, column);
  const int64_t step = kStep * from.stride;
  const Bf16* source = from.data + (first + begin) * from.stride + column;
  if (from.by_chunks && first >= valid.begin && first + kRows <= valid.end) {  // most tiles: few instructions, which the loads wait for
    const bool exists = column < from.head_size;
    if (!exists) source = from.data + first * from.stride;
#pragma unroll
    for (int i = 0; i < kRows / kStep; ++i, source += step) copy_16_bytes(to + i * kStep * kPanelRowBytes, source, exists);
    return;
  }
  if (from.by_chunks) {
#pragma unroll 1
    for (int i = 0; i < kRows / kStep; ++i, source += step) {
      const int row = first + begin + i * kStep;
      const bool exists = row >= valid.begin && row < valid.end && column < from.head_size;
      copy_16_bytes(to + i * kStep * kPanelRowBytes, exists ? source : from.data, exists);
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kRows / kStep; ++i) {
    const int row = first + begin + i * kStep;
    uint32_t words[4] = {};
    if (row >= valid.begin && row < valid.end) {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (column + c >= from.head_size) continue;
        words[c / 2] |= static_cast<uint32_t>(__bfloat16_as_ushort(source[i * step + c])) << (c % 2 * 16);
      }
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + i * kStep * kPanelRowBytes), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
  }
}

__device__ inline uint32_t pack(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Stores a warpgroup's accumulators [64, kHead] to rows first_row + 64 * warpgroup of one head, by way of its rows of `tile`
// [kTileRows, kHead], which no thread reads or writes any more. Only this warpgroup waits. Rows past the last one are left out.
template <int kTileRows, int kHead>
__device__ void store_accumulators(uint32_t tile, const float (&sums)[kHead / 2], const Rows<Bf16>& out, int head, int head_size,
                                   int first_row, int num_rows) {
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, base = static_cast<int>(threadIdx.x) / kWarpgroup * 64;
  const int row = base + thread / kWarp * 16 + thread % kWarp / 4, column = thread % 4 * 2;
#pragma unroll
  for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm volatile("st.shared.b32 [%0], %1;" ::"r"(tile + tile_offset<kTileRows>(row + half * 8, n * 8 + column)),
                   "r"(pack(sums[4 * n + 2 * half], sums[4 * n + 2 * half + 1]))
                   : "memory");
    }
  }
  asm volatile("bar.sync %0, 128;" ::"r"(1 + static_cast<int>(threadIdx.x) / kWarpgroup) : "memory");
  constexpr int kChunks = kHead / 8, kStep = kWarpgroup / kChunks;
  const int first_column = thread % kChunks * 8;
  Bf16* const to = out.data + static_cast<int64_t>(head) * head_size + first_column;
  const bool by_chunks = reinterpret_cast<uintptr_t>(out.data) % 16 == 0 && out.stride % 8 == 0 && head_size % 8 == 0;
#pragma unroll 1
  for (int i = thread / kChunks; i < 64; i += kStep) {
    const int64_t to_row = first_row + base + i;
    if (to_row >= num_rows || first_column >= head_size) continue;
    uint32_t words[4];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(tile + tile_offset<kTileRows>(base + i, first_column))
                 : "memory");
    if (by_chunks) {
      *reinterpret_cast<uint4*>(to + to_row * out.stride) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        if (first_column + c < head_size)
          to[to_row * out.stride + c] = __ushort_as_bfloat16(static_cast<unsigned short>(words[c / 2] >> (c % 2 * 16)));
      }
    }
  }
}

}  // namespace glim::cuda
