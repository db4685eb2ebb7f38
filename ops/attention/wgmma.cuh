#pragma once
// Hopper's matrix instructions (wgmma: a warpgroup of 4 warps multiplies 64 rows) and the tiles in shared memory that they read.
//
// A tile [rows, kHead] of bf16 consists of panels of 64 columns; a row of a panel is 128 bytes, and its 16-byte chunk c lies at
// c ^ (row % 8) (the 128-byte swizzle). Tiles start at multiples of 1024 bytes. The same tile serves as an operand whose depth is its
// columns (q and k in q k^T) and, transposed by the instruction, as one whose depth is its rows (v in p v).
#include "ops/attention/attention.cuh"

namespace glim::cuda {

using Bf16 = __nv_bfloat16;

constexpr int kWarpgroup = 128, kPanelColumns = 64, kPanelRowBytes = 128, kTileAlignment = 1024;
template <int kRows, int kHead>
constexpr int kTileBytes = kRows* kHead * 2;

// Byte offset of (row, column) in a tile; column is even, and may be any of a chunk of 8.
template <int kRows>
__device__ uint32_t tile_offset(int row, int column) {
  return column / kPanelColumns * kRows * kPanelRowBytes + row * kPanelRowBytes + ((column % kPanelColumns / 8) ^ (row % 8)) * 16 +
         column % 8 * 2;
}

__device__ inline uint32_t shared_address(const void* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

// Two warpgroups multiply, and one loads for them.
constexpr int kConsumers = 2 * kWarpgroup, kThreads = kConsumers + kWarpgroup;
// The same in all lanes, as the compiler then knows.
__device__ inline int warpgroup() { return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / kWarpgroup, 0); }
__device__ inline bool loads() { return warpgroup() == 2; }
// Registers move from the warpgroup that loads to those that multiply: together at most 168 * 3.
template <int kRegisters>
__device__ void take_few_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void take_many_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- barriers in shared memory (mbarrier). Phase p of a barrier is over when all arrivals of its round p have come.
__device__ inline void make_barrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ inline void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives when this thread's copies so far are done.
__device__ inline void arrive_after_copies(uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ inline void arrive_after_loads(uint64_t* barrier, bool by_copies) {
  if (by_copies) return arrive_after_copies(barrier);
  wait_for_copies();
  arrive(barrier);
}
__device__ inline void wait_for(uint64_t* barrier, int phase) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra over;\nbra again;\nover:\n}\n" ::
          "r"(shared_address(barrier)),
      "r"(phase & 1)
      : "memory");
}
// What other threads wrote before a barrier, the matrix instructions now see.
__device__ inline void let_products_see() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Stages that the loading warpgroup fills and the others empty, in turn. Use n of the stages is of stage n % kStages.
template <int kStages>
struct Pipeline {
  uint64_t full[kStages], empty[kStages];
  __device__ void make() {
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(full + stage, kWarpgroup);
      make_barrier(empty + stage, kConsumers / kWarp);
    }
  }
  __device__ void wait_until_empty(int use) { wait_for(empty + use % kStages, use / kStages + 1); }
  // After this thread's loads: `by_copies` says that all of them are copies, which may still be on their way.
  __device__ void fill(int use, bool by_copies) { arrive_after_loads(full + use % kStages, by_copies); }
  __device__ void wait_until_full(int use) { wait_for(full + use % kStages, use / kStages); }
  // The warp is done with the stage.
  __device__ void release(int use) {
    __syncwarp();
    if (threadIdx.x % kWarp == 0) arrive(empty + use % kStages);
  }
};

// ---- loads and stores of tiles
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

// ---- matrix instructions
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

// d [64, N] += (or =, when !adds) a [64, 16] b [16, N], both in shared memory with their depth along columns.
__device__ inline void multiply(float (&d)[32], uint64_t a, uint64_t b, bool adds) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31])
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
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
        "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
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
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31])
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
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
        "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

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
