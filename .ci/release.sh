#!/usr/bin/env bash
# The optimised program, and where nvcc is there the CUDA sources and the GPU test program, which skips without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release
targets=(glim glim_shared)
cmake --build --preset release --target help | grep '^gpu_test' >/dev/null && targets+=(gpu_test)
cmake --build --preset release --target "${targets[@]}"
[ ${#targets[@]} -eq 2 ] || build/release/tests/gpu_test
