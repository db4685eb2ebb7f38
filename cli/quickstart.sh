#!/usr/bin/env bash
# From a fresh clone to a trained model: installs what is missing, builds (CPU only), trains a tiny Muse Glimmer on real text,
# prints its loss and token accuracy on the way, and a sample at the end.
#   --seconds N   train for at most N seconds (default 110)
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=110
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=$2; shift 2 ;;
    *) echo "usage: cli/quickstart.sh [--seconds N]" >&2; exit 2 ;;
  esac
done
. cmake/packages.sh
need_packages "${build_packages[@]}"
need_packages fortunes fortunes-min || echo "glim: the text package is not there; training on the project's own documents"

build=build/quickstart
cmake -S . -B $build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGLIM_CUDA=OFF -DGLIM_TESTS=OFF >/dev/null
cmake --build $build --target glim

# The corpus: one file, quotations separated by blank lines.
corpus=$build/corpus.txt
fortunes=$(dpkg -L fortunes fortunes-min 2>/dev/null | grep '^/usr/share/games/fortunes/[a-z-]*$' | sort || true)
if [ -n "$fortunes" ]; then
  echo "glim: training text: Debian's packages fortunes and fortunes-min"
  # shellcheck disable=SC2086
  cat $fortunes | sed 's/^%$//' >$corpus
else
  echo "glim: training text: the project's own documents"
  git ls-files '*.md' '*.toml' '*.h' '*.cpp' | xargs cat >$corpus
fi
echo "glim: $(stat -c %s $corpus) bytes of text"

cat >$build/train.toml <<END
model = "muse_glimmer_tiny"

[data]
text = ["corpus.txt"]
validation_fraction = 0.01

[train]
tokens = 512
steps = 1500
max_seconds = $seconds
learning_rate = 3e-3
final_learning_rate = 3e-4
warmup_steps = 30
log_every = 25
output = "trained"

[checkpoint]
keep_last = 1
END
rm -rf "$build/trained"
$build/glim train $build/train.toml
echo "glim: the run in pictures: $build/trained/run.html"
echo
echo "glim: a sample"
$build/glim generate $build/trained --prompt "The " -n 240 --temperature 0.7 --top-p 0.95 --seed 7
