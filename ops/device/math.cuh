#pragma once
// Functions of f32 and f64 under one name. The accurate ones: no fast-math approximations, NaN passes through.
#include <cfloat>

#include "ops/device/device.cuh"

namespace glim::cuda {

__device__ inline float exp_of(float x) { return expf(x); }
__device__ inline double exp_of(double x) { return exp(x); }
__device__ inline float tanh_of(float x) { return tanhf(x); }
__device__ inline double tanh_of(double x) { return tanh(x); }
__device__ inline float erfc_of(float x) { return erfcf(x); }
__device__ inline double erfc_of(double x) { return erfc(x); }
__device__ inline float sqrt_of(float x) { return sqrtf(x); }
__device__ inline double sqrt_of(double x) { return sqrt(x); }
__device__ inline void sincos_of(float x, float& sine, float& cosine) { sincosf(x, &sine, &cosine); }
__device__ inline void sincos_of(double x, double& sine, double& cosine) { sincos(x, &sine, &cosine); }
__device__ inline float lowest(float) { return -FLT_MAX; }
__device__ inline double lowest(double) { return -DBL_MAX; }

template <class A>
__device__ inline A logistic(A x) {
  return A(1) / (A(1) + exp_of(-x));
}

}  // namespace glim::cuda
