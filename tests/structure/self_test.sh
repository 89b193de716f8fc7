#!/usr/bin/env bash
# Shows that check_structure.sh accepts a sound tree and finds each kind of
# violation in it.
set -euo pipefail
check=$(realpath "$(dirname "${BASH_SOURCE[0]}")")/check_structure.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

sound_tree() {
  rm -rf "$work/tree"
  mkdir -p "$work"/tree/{graph,solver,costmodel,problems,cli}
  cd "$work/tree"
  printf '// Comment.\n\n#pragma once\n' >graph/a.h
  printf '#include "graph/a.h"\n\n#include <vector>\n' >graph/a.cc
  printf '#pragma once\n' >solver/b.h
  printf '#include <CbcModel.hpp>\n#include "solver/b.h"\n' >solver/cbc_solver.cc
  printf '#include "graph/a.h"\n#include "solver/b.h"\n' >problems/c.cc
  printf 'target_link_libraries(x acplan::graph)\n' >problems/CMakeLists.txt
}

# expect_violation MESSAGE FILE TEXT: with TEXT as FILE, the check fails and says
# MESSAGE.
expect_violation() {
  local output
  sound_tree
  printf '%b\n' "$3" >"$2"
  if output=$("$BASH" "$check" "$work/tree"); then
    echo "not found: $1"
    failures=$((failures + 1))
  elif [[ $output != *"$1"* ]]; then
    printf 'expected: %s\nfound: %s\n' "$1" "$output"
    failures=$((failures + 1))
  fi
}

sound_tree
"$BASH" "$check" "$work/tree" || {
  echo "a sound tree was rejected"
  failures=$((failures + 1))
}

expect_violation 'graph/x.cc: graph/ may not know solver/' \
  graph/x.cc '#include "solver/b.h"'
expect_violation 'graph/x.cc: graph/ may not know cli/' \
  graph/x.cc '  #  include <cli/d.h>'
expect_violation 'solver/x.cc: solver/ may not know graph/' \
  solver/x.cc '#include "graph/a.h"'
expect_violation 'costmodel/x.cc: costmodel/ may not know solver/' \
  costmodel/x.cc '#include "solver/b.h"'
expect_violation 'problems/x.cc: problems/ may not know costmodel/' \
  problems/x.cc '#include "costmodel/e.h"'
expect_violation 'problems/x.cc: problems/ may not know cli/' \
  problems/x.cc '#include "cli/d.h"'
expect_violation 'graph/CMakeLists.txt: graph/ may not know solver/' \
  graph/CMakeLists.txt 'acplan_library(graph PUBLIC acplan::solver)'
expect_violation '<CoinModel.hpp> belongs in solver/cbc_solver.cc or lp_solver.cc' \
  problems/x.cc '#include <CoinModel.hpp>'
expect_violation '<coin/OsiClpSolverInterface.hpp> belongs in' \
  solver/milp.cc '#include <coin/OsiClpSolverInterface.hpp>'
expect_violation 'graph/x.cc: write "folder/a.h"' \
  graph/x.cc '#include "a.h"'
expect_violation '"../solver/b.h" is in no folder of the library' \
  graph/x.cc '#include "../solver/b.h"'
expect_violation 'graph/x.h: does not begin with #pragma once' \
  graph/x.h '#include <vector>\n#pragma once'
expect_violation 'graph/x.h: does not begin with #pragma once' \
  graph/x.h ''
expect_violation 'graph/a.cc: does not include "graph/a.h" first' \
  graph/a.cc '#include <vector>\n#include "graph/a.h"'

((failures == 0))
