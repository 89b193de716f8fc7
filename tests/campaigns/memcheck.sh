#!/usr/bin/env bash
# memcheck.sh PROGRAM ROOT: the main commands under valgrind's memcheck, on small files of
# the repository. Prints a row a command; fails where one reads or writes what it may not,
# uses what was never set, or loses memory.
set -euo pipefail
program=$(realpath "$1")
root=$(realpath "$2")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

trace=$root/tests/data/traces/free_unit.trace.json.gz
profile=$root/tests/fuzz/seeds/small_profile.json
graph=$root/tests/fuzz/seeds/small_joint.json
config=$root/data/training/models/llama-3.1-8b.json
status=0
echo "| command | exit code | errors | lost |"
echo "|---|---:|---:|---:|"

# run CODE ARGUMENT...: the program must end with that exit code.
run() {
  local expected=$1 code=0
  shift
  valgrind --leak-check=full --show-leak-kinds=definite \
    --errors-for-leak-kinds=definite --num-callers=30 --log-file=log \
    "$program" --color never "$@" >out 2>&1 || code=$?
  local errors lost
  errors=$(sed -n 's/.*ERROR SUMMARY: \([0-9,]*\) errors.*/\1/p' log)
  lost=$(sed -n 's/.*definitely lost: \([0-9,]*\) bytes.*/\1/p' log)
  echo "| $(sed "s|$root/||g" <<<"$*") | $code | $errors | ${lost:-0} |"
  if ((code != expected)) || [[ $errors != 0 ]]; then
    status=1
    cat out log >&2
  fi
}

run 0 plan "$trace" --budget min -o plan.json
run 0 plan "$trace" --budget 90% --decisions save,recompute
run 0 plan "$trace" --budget 80% --offload 25GB/s --time-limit none
run 0 plan "$root/data/profiles/transformer4.json.gz" --budget 70% -o units.json
run 0 plan "$root/data/profiles/transformer4.json.gz" --budget 70% --granularity module --engine cbc
run 3 plan "$trace" --budget 1KiB
run 2 plan "$graph" --budget 1KiB
run 0 check "$trace" plan.json --budget 1GiB
run 0 check "$root/data/profiles/transformer4.json.gz" units.json --budget 1TiB
run 0 compare "$trace" plan.json
run 0 simulate "$trace" plan.json -o steps.json
run 0 profile "$trace" -o profile.json
run 0 baseline profile.json
run 0 tree "$profile"
run 0 frontier "$trace" --points 4
run 0 explain "$trace"
run 0 report "$trace" plan.json -o report.html
run 0 remat "$graph" --budget 160 -o kept.json
run 0 train show "$config" --gpu h100 --gpus 8
run 0 train plan "$config" --gpu h100 --gpus 16 --tp 2 --pp 2
run 0 train search "$config" --gpu h100 --gpus 8 --pp 1 --cp 1
run 0 llm "$root/tests/fuzz/seeds/small_model.json" \
  "$root/tests/fuzz/seeds/small_execution.json" \
  "$root/tests/fuzz/seeds/small_system.json"
exit "$status"
