#!/usr/bin/env bash
# The optimised program, and where nvcc is there the CUDA sources and the GPU test program, which skips without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release
gpu_test=$(cmake --build --preset release --target help | grep -o '^gpu_test' || true)
cmake --build --preset release --target glim glim_shared ${gpu_test:+"$gpu_test"}
[ -z "$gpu_test" ] || build/release/tests/gpu_test
