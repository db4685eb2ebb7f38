#pragma once
// Shared shape of the CPU kernels: dtype dispatch, accumulation types, and loops over rows in tasks of fixed size.
#include <algorithm>
#include <cstdint>
#include <tuple>

#include "engine/dtype.h"
#include "engine/error.h"
#include "ops/bf16.h"
#include "ops/kernel_context.h"

// Before an element-by-element loop: its iterations are independent even where an output lies on top of an operand, so the compiler
// vectorises it without checking for overlap (a check that in-place use would fail).
#if defined(__GNUC__) && !defined(__clang__)
#define GLIM_ELEMENTWISE _Pragma("GCC ivdep")
#else
#define GLIM_ELEMENTWISE
#endif

namespace glim::cpu {

using glim::Accumulate;

template <class T>
struct Tag {
  using Type = T;
};

// Calls f(Tag<double>{}), f(Tag<float>{}) or f(Tag<Bf16>{}).
template <class F>
void dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kF64: return f(Tag<double>{});
    case DType::kF32: return f(Tag<float>{});
    case DType::kBF16: return f(Tag<Bf16>{});
    default: report_bug(__FILE__, __LINE__, "dispatch_float", "not a floating-point type");
  }
}

inline constexpr int64_t kElementsPerTask = 16384;

// Calls body(first, last) over ranges of rows, about kElementsPerTask elements each, in parallel.
template <class Body>
void for_row_ranges(KernelContext& context, int64_t rows, int64_t width, Body&& body) {
  if (rows == 0) return;
  const int64_t rows_per_task = std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, width));
  const int64_t tasks = (rows + rows_per_task - 1) / rows_per_task;
  context.parallel_for(tasks, [&](int64_t task) { body(task * rows_per_task, std::min(rows, (task + 1) * rows_per_task)); });
}

// Calls body(flat_count, pointers...) once per contiguous run of elements of tensors of one shape: whole ranges when all are contiguous,
// otherwise row by row. `Views` are TensorViews, `Ts` their element types.
template <class... Ts, class Body, class... Views>
void for_each_run(KernelContext& context, Body&& body, const Views&... views) {
  const TensorView& first = std::get<0>(std::tie(views...));
  const int64_t width = first.type.shape.last(), rows = first.type.shape.rows();
  if ((views.contiguous() && ...)) {
    const int64_t total = rows * width;
    const int64_t tasks = (total + kElementsPerTask - 1) / kElementsPerTask;
    context.parallel_for(tasks, [&](int64_t task) {
      const int64_t begin = task * kElementsPerTask;
      body(std::min(kElementsPerTask, total - begin), (views.template as<Ts>() + begin)...);
    });
    return;
  }
  for_row_ranges(context, rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(width, views.template row<Ts>(row)...);
  });
}

}  // namespace glim::cpu
