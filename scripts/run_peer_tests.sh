#!/usr/bin/env bash
# Run the tests of torchdata's StatefulDataLoader on StatefulGPULoader.
#
#   scripts/run_peer_tests.sh PATH [--original] [pytest arguments]
#
# PATH        a checkout of meta-pytorch/data, or of pytorch/pytorch (test/test_dataloader.py then
#             runs with DataLoader replaced, as far as possible)
# --original  (or PEER_ORIGINAL=1) keeps the original class, for comparison
# PYTHON      another interpreter than the project's .venv/bin/python
#
# Tests that differ on purpose are listed, with reasons, only in docs/compatibility.md: they are
# expected to fail, and it is an error if one of them passes.
set -euo pipefail

usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"
}

fail() {
  echo "run_peer_tests.sh: $1" >&2
  exit 2
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
original=${PEER_ORIGINAL:-0}
checkout=
arguments=()
for argument in "$@"; do
  case $argument in
    -h | --help) usage; exit 0 ;;
    --original) original=1 ;;
    *) if [[ -z $checkout ]]; then checkout=$argument; else arguments+=("$argument"); fi ;;
  esac
done

[[ -n $checkout ]] || { usage >&2; exit 2; }
[[ -d $checkout ]] || fail "there is no folder $checkout"
checkout=$(cd "$checkout" && pwd)
if [[ -f $checkout/test/stateful_dataloader/test_state_dict.py ]]; then
  tests=test/stateful_dataloader
  packages=(pytest parameterized expecttest psutil datasets)
elif [[ -f $checkout/test/test_dataloader.py ]]; then
  tests=test/test_dataloader.py
  packages=(pytest expecttest psutil)
else
  fail "$checkout is no checkout of meta-pytorch/data (no test/stateful_dataloader in it) and none \
of pytorch/pytorch (no test/test_dataloader.py)"
fi

command -v "$python" > /dev/null || fail "no interpreter at $python; set PYTHON to another one"
missing=()
for package in "${packages[@]}"; do
  "$python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$package') is None)" ||
    missing+=("$package")
done
if ((${#missing[@]})); then
  fail "the tests need packages that are not installed: $python -m pip install ${missing[*]}"
fi

cd "$checkout"
for argument in ${arguments[@]+"${arguments[@]}"}; do
  [[ $argument == -* || ! -e ${argument%%::*} ]] || tests=  # the user chooses
done
# -c: neither this project's nor the checkout's pytest settings are meant for this run.
export PEER_ORIGINAL=$original PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
# shellcheck disable=SC2086
exec "$python" "$root/scripts/peer_tests_plugin.py" -c /dev/null --rootdir="$checkout" \
  -p no:cacheprovider -q $tests ${arguments[@]+"${arguments[@]}"}
