#!/usr/bin/env bash
# Installs what is missing, builds with sanitizers and warnings as errors, and runs the test program of every folder (ctest).
# .ci/run adds what needs other builds: tests/embedding (release, installed) and fuzzing (clang).
# On a machine without a GPU, the tests that need one say so and are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
. cmake/packages.sh
need_packages "${build_packages[@]}" "${test_packages[@]}"
cmake --preset dev >/dev/null
cmake --build --preset dev
ctest --preset dev "$@"
