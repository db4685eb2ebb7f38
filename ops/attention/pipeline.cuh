#pragma once
// How the warpgroups of a block on tensor cores share the work: one loads, two multiply, and barriers in shared memory hand over the tiles.
#include "ops/attention/attention.cuh"

namespace glim::cuda {

__device__ inline uint32_t shared_address(const void* pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

using Bf16 = __nv_bfloat16;
constexpr int kWarpgroup = 128;

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

}  // namespace glim::cuda
