#!/usr/bin/env bash
# A search in several processes, by GNU parallel:
#
#   parallel_search.sh SHARDS OUTPUT MODEL NUM_PROCS MAX_BATCH DATATYPE SYSTEM \
#     [flags of acplan calculon llm-optimal-execution]
#
# The result is that of one process. As many run at a time as there are cores;
# with PARALLEL='--sshloginfile hosts.txt --workdir .' they run on those hosts,
# which see the same folder. --noneok: where a shard has nothing feasible, others
# may have.
set -euo pipefail
if (($# < 7)); then
  echo "parallel_search.sh: expected SHARDS, OUTPUT and what to search" >&2
  exit 2
fi
shards=$1
output=$2
shift 2
parts=$(mktemp -d "$output.parts.XXXXXX")
trap 'rm -r "$parts"' EXIT
seq "$shards" | parallel --quote --halt now,fail=1 \
  acplan -v WARNING calculon llm-optimal-execution "${@:1:5}" "$parts/{}.json" \
  "${@:6}" --noneok --cpus 1 --shard "{}/$shards"
acplan calculon llm-merge "$parts"/*.json "$output"
