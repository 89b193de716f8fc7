#!/usr/bin/env bash
# Plans, verifies and runs training steps of many packages, and writes docs/measured/third_party.csv:
#
#     ACPLAN=... tests/run_third_party.sh FOLDER [NAME...]
#
# The packages are installed into an environment in the folder, 10 GB, unless it is there. Results
# are lines of FOLDER/results.jsonl; a step that held there is not run again. A name is that of a
# package or `PACKAGE: STEP`; without names all are run, JOBS at a time (by default as many as there
# are processors), which takes half an hour on two. The log is FOLDER/log.
set -euo pipefail
fail() {
  echo "run_third_party.sh: $*" >&2
  exit 2
}
[[ ${ACPLAN:-} ]] || fail "expected the path of acplan in ACPLAN"
(($# >= 1)) || fail "expected a folder, found nothing"
ACPLAN=$(realpath "$ACPLAN")
folder=$(realpath -m "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ! -e $folder/complete ]]; then
  python3.11 -m venv --clear "$folder"
  # Without dependencies: some packages ask for versions that others exclude, and run all the same.
  "$folder/bin/python" -m pip install --quiet --no-cache-dir --no-deps \
    --requirement tests/third_party/requirements.txt
  touch "$folder/complete"
fi
export ACPLAN PYTHONPATH=. OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES= WANDB_MODE=disabled
python=("$folder/bin/python" -W ignore tests/compare_third_party.py)
"${python[@]}" run "$folder/results.jsonl" "$@" >>"$folder/log" 2>&1
"${python[@]}" page "$folder/results.jsonl"
