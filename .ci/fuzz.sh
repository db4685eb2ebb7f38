#!/usr/bin/env bash
# Builds every fuzz target and runs each one for that many seconds, two at a time:   .ci/fuzz.sh [SECONDS]
# Starts from seeds, the findings of tests/fuzz and what earlier runs left in build/fuzz/corpus. Fails on any finding and says where it is; once it
# is fixed, put the input into tests/fuzz/findings/TARGET/, where an ordinary test replays it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
. cmake/packages.sh
need_packages "${build_packages[@]}" "${fuzz_packages[@]}"
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
work=$PWD/build/fuzz
mkdir -p "$work/logs"

run_target() { # TARGET
  local target=$1 max_len=16384 log=$work/logs/$1.log folders=() executions coverage
  [ "$target" = json_config_fuzz ] && max_len=4096
  mkdir -p "$work/corpus/$target" "$work/found/$target"
  "$work/tests/fuzz/write_seeds" "$target" "$work/seeds/$target" >/dev/null
  [ -d "tests/fuzz/findings/$target" ] && folders+=("tests/fuzz/findings/$target")
  if ! "$work/tests/fuzz/$target" "$work/corpus/$target" "$work/seeds/$target" "${folders[@]}" -dict="tests/fuzz/$target.dict" \
    -max_total_time="$seconds" -max_len="$max_len" -timeout=5 -rss_limit_mb=512 -print_final_stats=1 \
    -artifact_prefix="$work/found/$target/" >"$log" 2>&1; then
    tail -n 60 "$log"
    echo "$target: FOUND SOMETHING: $(ls "$work/found/$target")  (in $work/found/$target; log: $log)"
    return 1
  fi
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(grep -o 'cov: [0-9]*' "$log" | tail -n 1)
  echo "$target: $executions executions, $coverage, nothing found"
}
export -f run_target
export seconds work
targets=()
for source in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" .cpp)"); done
printf '%s\n' "${targets[@]}" | xargs -P 2 -I {} bash -c 'run_target {}'
