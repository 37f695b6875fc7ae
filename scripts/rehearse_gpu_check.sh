#!/usr/bin/env bash
# Runs benchmarks/gpu_check.py without a GPU, in an environment like that of a GPU machine without
# a package index: its Python and torch, and the wheels that would travel with the repository. All
# tests have to be collected, none may fail, and each has to skip only because there is no GPU.
#
#   scripts/rehearse_gpu_check.sh FOLDER
#
# FOLDER keeps the environment (about 6 GB) and the wheels for the next time, and receives the
# report. PYTHON is the interpreter to use: 3.12, as on the GPU machine.
set -euo pipefail

if [[ $# -ne 1 ]]; then
  sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
checkout=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
python=$folder/venv/bin/python

if [[ ! -x $python ]]; then
  "${PYTHON:-python3.12}" -m venv "$folder/venv"
fi
# Packages of the GPU machine: torch for CUDA 13, and tools for the tests.
"$python" -m pip install --quiet 'torch==2.11.*' 'torchvision==0.26.*' numpy pytest pytest-timeout \
  hypothesis scipy pillow tqdm scikit-image scikit-learn psutil fsspec
if [[ ! -d $folder/site ]]; then
  "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$folder/wheels" \
    --requirement "$checkout/benchmarks/gpu/wheels.txt"
  "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir --upgrade \
    --target "$folder/site" "$folder"/wheels/*.whl
fi
cd "$checkout"
PYTHONPATH=$folder/site "$python" -m benchmarks.gpu_check --rehearse --seconds 1800 \
  --output "$folder/report"
