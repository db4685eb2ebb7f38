#!/usr/bin/env bash
# clang-tidy on the changed source files (against the previous commit; CI_LINT_BASE overrides), naming as errors.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${CI_LINT_BASE:-HEAD~1}
git rev-parse -q --verify "$base" >/dev/null || base=$(git hash-object -t tree /dev/null)
mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- 'engine/*.cpp' 'ops/*.cpp' 'autodiff/*.cpp' 'models/*.cpp' 'runtime/*.cpp' 'cli/*.cpp' | head -60)
[ ${#files[@]} -gt 0 ] || { echo "no changed source file"; exit 0; }
[ -f build/release/compile_commands.json ] || cmake --preset release >/dev/null
printf '%s\n' "${files[@]}" | xargs -P 2 -n 4 clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option
echo "${#files[@]} changed files are clean"
