#!/usr/bin/env bash
# Shows that the checks of this folder accept a sound tree and find
# each kind of violation in it, in C++ and in Python.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
package=adapters/torch/acplan

sound_tree() {
  rm -rf "$work/tree"
  mkdir -p "$work"/tree/{graph/{base,trace},solver/labels,costmodel/{calculon,training/{model,plans,time}},cli/{calculon,pictures,training},tests/structure}
  mkdir -p "$work"/tree/problems/{check,engines/{labels,milp},trace/{problem,relaxation,rerun_bound}}
  cd "$work/tree"
  printf '// Comment.\n\n#pragma once\n' >graph/base/a.h
  printf '#include "graph/base/a.h"\n\n#include <vector>\n' >graph/base/a.cc
  printf '#pragma once\n' >graph/trace/t.h
  printf '#pragma once\n' >solver/b.h
  printf '#include <CbcModel.hpp>\n#include "solver/b.h"\n' >solver/cbc_solver.cc
  printf '#include "graph/base/a.h"\n#include "solver/b.h"\n' >problems/c.cc
  printf '#include "problems/engines/milp/m.h"\n' >problems/planner.cc
  printf 'target_link_libraries(x acplan::graph)\n' >problems/CMakeLists.txt
  mkdir -p "$package"/{_base,_apply,_step}
  printf 'from acplan._step.trace import trace\n' >"$package/__init__.py"
  printf '"""A room."""\n' >"$package/_base/__init__.py"
  printf 'import torch\n\nfrom acplan._base.b import b\n' >"$package/_apply/a.py"
  printf '"""A room.\n\n    torch.f, private\n    torch.g_*\n        a.py: why.\n"""\n' \
    >"$package/_step/__init__.py"
  printf 'N = "g_h"\nset_attribute(torch, "f", 1)\nset_attribute(torch, N, 1)\n' >"$package/_step/a.py"
}

# expect_violation CHECK MESSAGE FILE TEXT: with TEXT as FILE, the check fails
# and says MESSAGE.
expect_violation() {
  local output
  sound_tree
  printf '%b\n' "$4" >"$3"
  if output=$(python3 "$here/$1" "$work/tree"); then
    echo "not found: $2"
    failures=$((failures + 1))
  elif [[ $output != *"$2"* ]]; then
    printf 'expected: %s\nfound: %s\n' "$2" "$output"
    failures=$((failures + 1))
  fi
}

for check in check_structure.py check_sizes.py check_words.py check_pages.py; do
  sound_tree
  python3 "$here/$check" "$work/tree" || {
    echo "$check: a sound tree was rejected"
    failures=$((failures + 1))
  }
done

pages() { expect_violation check_pages.py "$@"; }
pages 'a.md: the link to a.md#there leads to no heading' a.md '# Here\n\n[x](a.md#there)'
pages 'README.md: 101 lines, more than 100' README.md "$(printf 'x\\n%.0s' {1..100})"

structure() { expect_violation check_structure.py "$@"; }
structure 'graph/base/x.cc: graph/base/ may not know graph/trace/t.h' \
  graph/base/x.cc '#include "graph/trace/t.h"'
structure 'graph/trace/x.cc: graph/trace/ may not know solver/b.h' \
  graph/trace/x.cc '#include "solver/b.h"'
structure 'graph/base/x.cc: graph/base/ may not know cli/d.h' \
  graph/base/x.cc '  #  include <cli/d.h>'
structure 'solver/x.cc: solver/ may not know graph/base/a.h' \
  solver/x.cc '#include "graph/base/a.h"'
structure 'costmodel/calculon/x.cc: costmodel/calculon/ may not know solver/b.h' \
  costmodel/calculon/x.cc '#include "solver/b.h"'
structure 'costmodel/calculon/ may not know costmodel/training/model/m.h' \
  costmodel/calculon/x.cc '#include "costmodel/training/model/m.h"'
structure 'costmodel/training/ may not know costmodel/calculon/c.h' \
  costmodel/training/x.cc '#include "costmodel/calculon/c.h"'
structure 'costmodel/training/time/ may not know costmodel/training/plans/p.h' \
  costmodel/training/time/x.cc '#include "costmodel/training/plans/p.h"'
structure 'costmodel/training/model/ may not know graph/trace/t.h' \
  costmodel/training/model/x.cc '#include "graph/trace/t.h"'
structure 'no rule covers its folder' costmodel/x.cc ''
structure 'problems/x.cc: problems/ may not know costmodel/calculon/e.h' \
  problems/x.cc '#include "costmodel/calculon/e.h"'
structure 'problems/x.cc: problems/ may not know cli/d.h' \
  problems/x.cc '#include "cli/d.h"'
structure 'problems/engines/labels/ may not know problems/engines/milp/m.h' \
  problems/engines/labels/x.cc '#include "problems/engines/milp/m.h"'
structure 'problems/engines/milp/ may not know problems/engines/labels/l.h' \
  problems/engines/milp/x.cc '#include "problems/engines/labels/l.h"'
structure 'problems/check/ may not know problems/trace/t.h' \
  problems/check/x.cc '#include "problems/trace/t.h"'
structure 'problems/check/ may not know solver/b.h' \
  problems/check/x.cc '#include "solver/b.h"'
structure 'problems/trace/ may not know problems/planner.h' \
  problems/trace/x.cc '#include "problems/planner.h"'
structure 'problems/trace/problem/ may not know problems/trace/relaxation/r.h' \
  problems/trace/problem/x.cc '#include "problems/trace/relaxation/r.h"'
structure 'problems/trace/relaxation/ may not know problems/trace/trace_search.h' \
  problems/trace/relaxation/x.cc '#include "problems/trace/trace_search.h"'
structure 'problems/trace/rerun_bound/ may not know problems/trace/problem/p.h' \
  problems/trace/rerun_bound/x.cc '#include "problems/trace/problem/p.h"'
structure 'cli/pictures/ may not know cli/command.h' \
  cli/pictures/x.cc '#include "cli/command.h"'
structure 'cli/training/ may not know cli/calculon/c.h' \
  cli/training/x.cc '#include "cli/calculon/c.h"'
structure 'cli/calculon/ may not know costmodel/training/t.h' \
  cli/calculon/x.cc '#include "costmodel/training/t.h"'
structure 'graph/CMakeLists.txt: graph/ may not know solver/' \
  graph/CMakeLists.txt 'acplan_library(graph PUBLIC acplan::solver)'
structure 'no rule covers its folder' graph/x.cc ''
structure '<CoinModel.hpp> belongs in the files of solver/ that wrap COIN-OR' \
  problems/x.cc '#include <CoinModel.hpp>'
structure '<coin/OsiClpSolverInterface.hpp> belongs in' \
  solver/milp.cc '#include <coin/OsiClpSolverInterface.hpp>'
structure 'graph/base/x.cc: write "folder/a.h"' \
  graph/base/x.cc '#include "a.h"'
structure '"../solver/b.h" is in no folder of the library' \
  graph/base/x.cc '#include "../solver/b.h"'
structure 'graph/base/x.h: does not begin with #pragma once' \
  graph/base/x.h '#include <vector>\n#pragma once'
structure 'graph/base/x.h: does not begin with #pragma once' \
  graph/base/x.h ''
structure 'graph/base/a.cc: does not include "graph/base/a.h" first' \
  graph/base/a.cc '#include <vector>\n#include "graph/base/a.h"'

structure '_apply may not know acplan._step.trace (only: _apply, _base, _files)' \
  $package/_apply/x.py 'from acplan._step.trace import trace'
structure '_apply may not know acplan._step.trace' \
  $package/_apply/x.py 'def f():\n    import acplan._step.trace'
structure '_base may not know acplan._apply' \
  $package/_base/x.py 'from acplan import _apply'
structure '_base may not know acplan.trace' \
  $package/_base/x.py 'from acplan import trace'
structure 'write "acplan" in place of the dots of ..' \
  $package/_apply/x.py 'from .._step import trace'
structure '_base/x.py: unittest is for tests' \
  $package/_base/x.py 'from unittest import mock'
structure 'x.py: is in no room, and is no module that users import' $package/x.py ''
structure '_base/__init__.py: imports nothing' \
  $package/_base/__init__.py 'from acplan._base.b import b'
structure '_base/x.py: replaces f, which the list in _base/__init__.py does not have' \
  $package/_base/x.py 'from acplan._base import patching\npatching.set_attribute(torch, "f", 1)'
structure '_step/x.py: replaces f_, which the list in _step/__init__.py does not have' \
  $package/_step/x.py 'import torch\n\nwith replaced_here(torch, "f_", 1):\n    pass'
structure '_step/x.py: replaces k, which' \
  $package/_step/x.py 'for name in ("f", "k"):\n    set_attribute(torch, name, 1)'
structure '_step/a.py: replaces f, which' $package/_step/__init__.py '"""A room of torch.f."""'
structure 'lightning.py: replaces f, which the list in lightning.py does not have' \
  $package/lightning.py '"""It."""\nset_attribute(torch, "f", 1)'

sizes() { expect_violation check_sizes.py "$@"; }
# repeat COUNT TEXT: for printf, so with %d for the number of the line.
repeat() { for ((i = 1; i <= $1; ++i)); do printf "$2\n" "$i"; done; }
sizes 'cli/x.cc: 501 lines, more than 500' cli/x.cc "$(repeat 501 'int a%d;')"
sizes 'cli/x.cc: F: 61 lines, more than 60' \
  cli/x.cc "$(printf 'void F() {  // {\n%s\n}' "$(repeat 59 '  G("{%d");')")"
sizes 'cli/x.cc: X: 201 lines, more than 200' \
  cli/x.cc "$(printf 'class X {\n%s\n};' "$(repeat 199 '  void F%d();')")"
sizes 'cli/x.cc: X: 9 data members, more than 8' \
  cli/x.cc "$(printf 'class X {\n int F() { return 1; }\n%s\n};' "$(repeat 9 '  int a%d_ = 1;')")"
sizes 'cli/x.cc: F: 6 parameters, more than 5' \
  cli/x.cc 'int F(int a, std::map<int, int> b, int c, int d, int e,\n      int f) {\n}'
sizes '_base/x.py: 501 lines, more than 500' \
  $package/_base/x.py "$(repeat 501 'a%d = 1')"
sizes '_base/x.py: f: 61 lines, more than 60' \
  $package/_base/x.py "$(printf 'def f():\n    \"\"\"Does it.\n\n    At length.\n    \"\"\"\n%s' "$(repeat 60 '    g(%d)')")"
sizes '_base/x.py: X: 201 lines, more than 200' \
  $package/_base/x.py "$(printf 'class X:\n%s' "$(repeat 200 '    a%d = 1')")"
sizes '_base/x.py: X: 9 data members, more than 8' \
  $package/_base/x.py "$(printf 'class X:\n    def __init__(self):\n%s' "$(repeat 9 '        self._a%d = 1')")"
sizes '_base/x.py: f: 6 parameters, more than 5' \
  $package/_base/x.py 'class X:\n    def f(self, a, b, c, d, e, f, *, g):\n        pass'
sizes 'nothing of cli/x.cc is too large' \
  tests/structure/sizes.txt 'cli/x.cc -- It is a table.'

words() { expect_violation check_words.py "$@"; }
words 'graph: 1 sentences, more than 0' graph/base/a.h '// By module.\nint a;'
words 'graph: 1 sentences' graph/base/a.cc 'int a;  // What it is.'
words 'graph: 1 sentences' graph/base/a.cc '// A plan. (Whether it\n// is one.)\nint a;'
words 'graph: 1 comments' graph/base/a.h '// The sum.\n[[nodiscard]] int Sum(int a);'
words 'graph: 1 comments' graph/base/a.h 'class X {\n  // Bytes of it.\n  X(int a);\n};'
words 'graph: 1 names' graph/base/a.cc 'int found = 1;'
words 'graph: 1 names' graph/base/a.cc 'void F(const Plan& of) {}'
words 'graph: 1 names' graph/base/a.cc 'std::vector<int> kept_;'
words 'graph: 1 names' graph/base/a.cc 'const auto& [plan, made] = Pair();'
words 'tests: 1 sentences' tests/a.py '"""Of no use."""'
words 'tests: 1 comments' tests/a.py 'def size():\n    """The size."""'
words 'tests: 1 names' tests/a.py 'for left in (1, 2):\n    pass'
words 'pages: 1 sentences' README.md 'A sentence. Those are\nwrong.'
words 'pages: 1 sentences' README.md '| a |\n|---|\n| What it is. |'
words 'graph: 0 names: lower the 2 in' tests/structure/words.txt 'graph 0 0 2'
words 'there is no room garden' tests/structure/words.txt 'garden 1 1 1'

# accepts_words FILE TEXT: check_words.py finds nothing in TEXT.
accepts_words() {
  sound_tree
  printf '%b\n' "$2" >"$1"
  python3 "$here/check_words.py" "$work/tree" || failures=$((failures + 1))
}
accepts_words graph/base/a.h '// `a`: Returns it. By default, 1.\nint F(int a);'
accepts_words graph/base/a.h '// The size.\nint size() const;\n\n// A table.\n\nint F();'
accepts_words graph/base/a.cc 'const char* a = "// Of it.";\nint b = x.found, c = a < left;'
accepts_words tests/a.py '@property\ndef size(self):\n    """The size."""'
accepts_words README.md '## What is it?\n\n| What | Of |\n|---|---|\n\n```\nOf code.\n```'

((failures == 0))
