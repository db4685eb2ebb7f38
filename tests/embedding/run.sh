#!/usr/bin/env bash
# tests/embedding/run.sh BUILD: installs BUILD (glim and glim_shared are built), moves the installed tree, and lets a project of its own use it.
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: tests/embedding/run.sh BUILD" >&2; exit 2; }
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "embedding: $*"; }

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix" # nothing may remember where it was installed
prefix=$work/prefix
library=$(find "$prefix" -name libglim.so)
libdir=$(dirname "$library")
unset GLIM_MODELS
echo 'extends = "muse_glimmer_tiny.toml"' >"$prefix/share/glim/models/only_in_this_prefix.toml"
"$prefix/bin/glim" plan only_in_this_prefix --tokens 64 >/dev/null

# The header, alone, with every warning.
echo '#include <glim/glim.h>' >"$work/header.cpp"
for compiler in g++ clang++; do
  "$compiler" -std=c++20 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -I"$prefix/include" "$work/header.cpp"
done
if grep -nE '#include [<"](fmt|Eigen|toml|nlohmann|cuda|CLI)|#include "' "$prefix/include/glim/glim.h"; then
  say "the header includes something of a third party or of the source tree"; exit 1
fi

# Nothing but the API is exported.
nm -D --defined-only "$library" | c++filt | cut -d' ' -f3- >"$work/exported"
if grep -vE '^glim::v0::' "$work/exported"; then say "these symbols are no part of the API"; exit 1; fi
say "$(wc -l <"$work/exported") exported symbols, all in glim::v0"

# Through CMake.
export CXX=g++
cmake -S "$here" -B "$work/cmake" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" || { cat "$work/log"; exit 1; }
cmake --build "$work/cmake" -j2 >"$work/log" || { cat "$work/log"; exit 1; }
mkdir "$work/scratch"
timeout 120 "$work/cmake/embedding_test" "$here" "$work/scratch" >"$work/output" 2>&1 || { cat "$work/output"; exit 1; }
[ ! -s "$work/output" ] || { cat "$work/output"; say "the library wrote to stdout or stderr"; exit 1; }
say "the host's tests pass, and nothing was printed"
for version in 0.1 0.2; do
  mkdir "$work/find$version"
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(find LANGUAGES CXX)\nfind_package(glim %s REQUIRED)\n' $version >"$work/find$version/CMakeLists.txt"
done
cmake -S "$work/find0.1" -B "$work/find0.1/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
if cmake -S "$work/find0.2" -B "$work/find0.2/build" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1; then
  say "another minor version is accepted"; exit 1
fi

# Through pkg-config, with LeakSanitizer below everything (it intercepts the library's allocations too).
flags=$(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --cflags --libs glim)
# shellcheck disable=SC2086
g++ -std=c++20 -g -fsanitize=leak "$here/cycles.cpp" -o "$work/cycles_leak" $flags -Wl,-rpath,"$libdir"
timeout 120 "$work/cycles_leak" "$here" 30
say "30 cycles under LeakSanitizer: no leak"
bound=4096
timeout 200 "$work/cmake/cycles" "$here" 1000 $bound
say "1,000 create, train, destroy cycles: memory grew by less than $bound kB"

# The README's example is this folder's file, and it works.
awk '/^## Embedding/ { found = 1 } found && /^```cpp/ { inside = 1; next } /^```/ { inside = 0 } inside' "$here/../../README.md" |
  diff - "$here/readme_example.cpp" || { say "README.md and readme_example.cpp differ"; exit 1; }
(cd "$work/scratch" && "$work/cmake/readme_example" >"$work/output") || { say "the README's example fails"; exit 1; }
grep -q '^40: loss' "$work/output" || { cat "$work/output"; exit 1; }
say "the README's example runs"
