#!/usr/bin/env bash
# coverage.sh [PATH...]: builds the tests of the rooms with counters, runs them, and prints
# a row a room: the lines that some test runs. A line counts as run once it is in any
# instance of a template. With PATHs, as `problems/trace`, `graph/base/file_io`, also the
# lines below them that nothing runs.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/setup.sh"
rooms=(graph problems solver costmodel)
folder=$root/build/coverage

install_packages "${build_packages[@]}" gcovr
build coverage "${rooms[@]/%/_tests}" >&2

# Counts of runs before this one do not count.
find "$folder" -name '*.gcda' -delete
printf '%s\n' "${rooms[@]}" |
  xargs -I{} -P "$(nproc)" env "$folder/tests/{}/{}_tests" --gtest_brief=1 >&2

cd "$root"
gcovr --root . --object-directory "$folder" -j "$(nproc)" --json "$folder/coverage.json" \
  "${rooms[@]/#/--filter=}" "$folder" >&2

# lines PATH: gcovr's table of the files below it.
lines() { gcovr --root . --add-tracefile "$folder/coverage.json" --filter "$1"; }

echo "| room | lines | run | share |"
echo "|---|---:|---:|---:|"
for room in "${rooms[@]}"; do
  lines "$room/" | awk -v room="$room" '/^TOTAL/ {
    printf "| `%s` | %d | %d | %.1f%% |\n", room, $2, $3, 100 * $3 / $2 }'
done
for path in "$@"; do
  lines "$path" | awk '/^File/ || /^[a-z].*[0-9]%  /'
done
