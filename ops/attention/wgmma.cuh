#pragma once
// Hopper's matrix instructions (wgmma): a warpgroup of 4 warps multiplies 64 rows.
#include "ops/attention/tile.cuh"

namespace glim::cuda {

__device__ inline uint64_t descriptor(uint32_t address, uint32_t leading_bytes) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightRows = uint64_t{8 * kPanelRowBytes / 16} << 32;
  return kSwizzle128 | kEightRows | uint64_t{leading_bytes / 16} << 16 | (address & 0x3ffff) / 16;
}
// 16 columns from `column` on of a tile [kRows, *] as depth.
template <int kRows>
__device__ uint64_t by_columns(uint32_t tile, int column) {
  return descriptor(tile + column / kPanelColumns * kRows * kPanelRowBytes + column % kPanelColumns * 2, 16);
}
// 16 rows from `row` on of a tile [kRows, *] as depth: the transposed operand.
template <int kRows>
__device__ uint64_t by_rows(uint32_t tile, int row) {
  return descriptor(tile + row * kPanelRowBytes, kRows * kPanelRowBytes);
}

template <int N>
__device__ void keep_registers(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N>
__device__ void keep_registers(uint32_t (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(d[i])::"memory");
}
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most kPending of the groups committed last are not done.
template <int kPending>
__device__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// The accumulators of a thread as operands %0 ... of an instruction.
#define GLIM_ACCUMULATORS_8(d, i)                                                                                                       \
  "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]), "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), \
      "+f"((d)[(i) + 7])
#define GLIM_ACCUMULATORS_32(d) GLIM_ACCUMULATORS_8(d, 0), GLIM_ACCUMULATORS_8(d, 8), GLIM_ACCUMULATORS_8(d, 16), GLIM_ACCUMULATORS_8(d, 24)
#define GLIM_ACCUMULATORS_64(d) \
  GLIM_ACCUMULATORS_32(d), GLIM_ACCUMULATORS_8(d, 32), GLIM_ACCUMULATORS_8(d, 40), GLIM_ACCUMULATORS_8(d, 48), GLIM_ACCUMULATORS_8(d, 56)

// d [64, N] += (or =, when !adds) a [64, 16] b [16, N], both in shared memory with their depth along columns.
__device__ inline void multiply(float (&d)[32], uint64_t a, uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : GLIM_ACCUMULATORS_32(d)
      : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
__device__ inline void multiply(float (&d)[64], uint64_t a, uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}\n"
      : GLIM_ACCUMULATORS_64(d)
      : "l"(a), "l"(b), "r"(static_cast<int>(adds)));
}
// d [64, N] += a [64, 16] b [16, N]: a in registers, b in shared memory with its depth along rows.
__device__ inline void multiply_add(float (&d)[32], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : GLIM_ACCUMULATORS_32(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void multiply_add(float (&d)[64], const uint32_t* a, uint64_t b) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : GLIM_ACCUMULATORS_64(d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef GLIM_ACCUMULATORS_64
#undef GLIM_ACCUMULATORS_32
#undef GLIM_ACCUMULATORS_8

// d [64, kColumns] = rows [64 * warpgroup, ...) of a tile [kRows, kHead] * (tile [kColumns, kHead])^T.
template <int kRows, int kColumns, int kHead>
__device__ void scores(float (&d)[kColumns / 2], uint32_t a, uint32_t b) {
  const uint32_t own = a + warpgroup() * 64 * kPanelRowBytes;
#pragma unroll
  for (int c = 0; c < kHead; c += 16) multiply(d, by_columns<kRows>(own, c), by_columns<kColumns>(b, c), c > 0);
}
// d [64, kHead] += weights [64, kDepth] (packed accumulators) * tile [kDepth, kHead].
template <int kDepth, int kHead>
__device__ void add_weighted(float (&d)[kHead / 2], const uint32_t (&weights)[kDepth / 4], uint32_t tile) {
#pragma unroll
  for (int r = 0; r < kDepth; r += 16) multiply_add(d, weights + r / 4, by_rows<kDepth>(tile, r));
}

// Accumulators [64, N] as the left operand of another product.
template <int N>
__device__ void pack_accumulators(const float (&from)[N / 2], uint32_t (&to)[N / 4]) {
#pragma unroll
  for (int i = 0; i < N / 4; ++i) to[i] = pack(from[2 * i], from[2 * i + 1]);
}

__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace glim::cuda
