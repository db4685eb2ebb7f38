#!/usr/bin/env bash
# glim's training step beside PyTorch's: builds glim with Eigen's products and with OpenBLAS's, installs torch and transformers into a virtual
# environment (TORCH_VENV, about 6 GB), then measures all three in turn and prints the table of README.md. Measuring takes about two minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
. cmake/packages.sh
need_packages "${build_packages[@]}" libopenblas-dev python3-venv python3-dev
venv=${TORCH_VENV:-$PWD/build/torch-venv}
for blas in Eigen OpenBLAS; do
  cmake -S . -B "build/bench-$blas" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGLIM_CUDA=OFF -DGLIM_TESTS=OFF -DGLIM_BLAS=$blas >/dev/null
  cmake --build "build/bench-$blas" --target glim >/dev/null
done
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import torch, transformers' 2>/dev/null; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet torch 'transformers>=5.15'
fi
exec "$venv/bin/python" tests/bench/compare_step.py --glim build/bench-Eigen/glim --glim-openblas build/bench-OpenBLAS/glim "$@"
