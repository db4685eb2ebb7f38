#!/usr/bin/env bash
# Every C++ file is formatted as .clang-format says, and none is over 600 lines.
set -euo pipefail
cd "$(dirname "$0")/.."
mapfile -t files < <(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
clang-format --dry-run --Werror "${files[@]}"
for file in "${files[@]}"; do
  lines=$(wc -l <"$file")
  [ "$lines" -le 600 ] || { echo "$file has $lines lines; the limit is 600"; exit 1; }
done
echo "${#files[@]} files are well formatted"
