#!/usr/bin/env bash
# The optimised build, with the CUDA sources compiled where nvcc is there.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release
cmake --build --preset release
