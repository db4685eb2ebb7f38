#!/usr/bin/env bash
# Builds gpu_test and glim for sm_90a in build/gpu, runs every GPU test, then compute-sanitizer on the small cases. Needs no network.
#   tests/gpu/run.sh [--gtest_filter=...]      exit code: 0 when everything that could run passed
set -uo pipefail
cd "$(dirname "$0")/../.."
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
logs=build/gpu/logs
table=()
failed=0
mkdir -p "$logs"

# run NAME COMMAND...: the output goes to the terminal and to a log; one line of the table.
run() {
  local name=$1 start result=ok
  shift
  start=$(date +%s.%N)
  if ! "$@" 2>&1 | tee "$logs/$name.log"; then
    result=FAILED
    failed=1
  elif grep -q 'skipped: no CUDA device' "$logs/$name.log"; then
    result='skipped: no CUDA device'
  fi
  table+=("$(printf '%-12s %-26s %8.1f' "$name" "$result" "$(echo "$(date +%s.%N) $start" | awk '{print $1 - $2}')")")
  [ "$result" != FAILED ]
}

report() {
  printf '\n%-12s %-26s %8s\n' name result seconds
  printf '%s\n' "${table[@]}"
  exit "$failed"
}

generator=()
command -v ninja >/dev/null && [ ! -f build/gpu/CMakeCache.txt ] && generator=(-G Ninja)
run configure cmake -S . -B build/gpu "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DGLIM_CUDA=ON -DGLIM_SANITIZE=OFF -DCMAKE_CUDA_ARCHITECTURES=90a \
  ${TOMLPLUSPLUS_DIR:+"-DTOMLPLUSPLUS_DIR=$TOMLPLUSPLUS_DIR"} || report
run build cmake --build build/gpu --target gpu_test || report
test=build/gpu/tests/gpu_test
run tests "$test" "$@"

sanitizer=$(command -v compute-sanitizer || true)
[ -z "$sanitizer" ] && [ -x /usr/local/cuda/bin/compute-sanitizer ] && sanitizer=/usr/local/cuda/bin/compute-sanitizer
for tool in memcheck racecheck initcheck synccheck; do
  if [ -z "$sanitizer" ]; then
    table+=("$(printf '%-12s %-26s %8s' "$tool" 'skipped: no tool' -)")
  elif grep -q 'skipped: no CUDA device' "$logs/tests.log"; then
    table+=("$(printf '%-12s %-26s %8s' "$tool" 'skipped: no CUDA device' -)")
  else
    run "$tool" "$sanitizer" --tool "$tool" --error-exitcode 1 "$test" --gtest_filter='Gpu.Small*:GpuHead.Small*:GpuAttention.Small*:Gpu/SmallOps.EveryCase*'
  fi
done
report
