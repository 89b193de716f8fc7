#!/usr/bin/env bash
# Runs tests of the adapter on other versions of PyTorch than the one that it is developed on:
#
#     ACPLAN=... tests/run_versions.sh FOLDER VERSION... [-- ARGUMENT...]
#
# Each version is installed into an environment of its own in the folder, 5 to 8 GB, unless it is
# there; its log is beside it. The arguments are pytest's; by default those tests run that ask most
# of PyTorch's insides. The last lines are pytest's, one for each version.
set -euo pipefail
fail() {
  echo "run_versions.sh: $*" >&2
  exit 2
}
[[ ${ACPLAN:-} ]] || fail "expected the path of acplan in ACPLAN"
program=$(realpath "$ACPLAN")
(($# >= 2)) || fail "expected a folder and versions, found: $*"
folder=$(realpath -m "$1")
shift
versions=()
while (($#)) && [[ $1 != -- ]]; do
  [[ $1 =~ ^[0-9]+\.[0-9]+(\.[0-9]+)?$ ]] || fail "expected a version such as 2.9.1, found: $1"
  versions+=("$1")
  shift
done
(($# == 0)) || shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($#)) || set -- -n 2 --dist worksteal tests/test_{applying,compiled,compiling,exactness,real_steps}.py \
  tests/test_{segments,skipping,tracing,versions}.py

# install VERSION FOLDER
install() {
  [[ -e $2/complete ]] && return
  python3 -m venv --clear "$2"
  "$2/bin/python" -m pip install --quiet --no-cache-dir "torch==$1" transformers==5.23.0 \
    accelerate==1.15.0 diffusers==0.42.1 lightning==2.6.6 peft==0.21.2 numpy scipy setuptools \
    expecttest pytest pytest-xdist tqdm 'pulp<4' pwlf
  touch "$2/complete"
}

status=0
told=()
for version in "${versions[@]}"; do
  install "$version" "$folder/$version"
  log="$folder/$version.log"
  HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 ACPLAN=$program PYTHONPATH=. TORCHINDUCTOR_CACHE_DIR="$folder/$version/cache" \
    "$folder/$version/bin/python" -m pytest -q -p no:cacheprovider "$@" >"$log" 2>&1 || status=1
  told+=("$version: $(tail -n 1 "$log")")
done
printf '%s\n' "${told[@]}"
exit $status
