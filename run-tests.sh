#!/usr/bin/env bash
# Installs what is missing and runs every check: all tests in the release build
# (warnings are errors), all tests again under AddressSanitizer and UBSan, the
# PyTorch adapter's tests, pages in a browser, the wheel, programs by HiGHS, the format
# check and scripts/lint.sh. The last line is "N passed, M failed": N and M count the tests
# of all these, and a build or check that fails counts as one failure.
#
# With --quick, which is for between two edits, it runs the release build's tests, those of
# the adapter's that say most in a minute, the format check and scripts/lint.sh.
set -euo pipefail
quick=
case "$*" in
  "") ;;
  --quick) quick=1 ;;
  *)
    echo "run-tests.sh: expected --quick or nothing, found: $*" >&2
    exit 2
    ;;
esac
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"

passed=0
failed=0

# attribute NAME FILE: the number that ctest's report gives as NAME.
attribute() {
  sed -n "s/^[[:space:]]*$1=\"\([0-9]*\)\".*/\1/p" "$2" | head -n 1
}

# count_cases FOLDER: the cases of processes that run many, each of which ctest
# took for one test that passed or failed: `passed` and the caller's `failures`
# become what they would be with a process a case. One that broke off has no
# report: it stays one failure.
count_cases() {
  local file cases failed_cases left_out
  for file in "$1"/*.xml; do
    [[ -f $file ]] || continue
    read -r cases failed_cases left_out < <(sed -n \
      's/^<testsuites tests="\([0-9]*\)" failures="\([0-9]*\)" disabled="\([0-9]*\)".*/\1 \2 \3/p' "$file") ||
      continue
    left_out=$((left_out + $(grep -c '<skipped' "$file" || true)))
    passed=$((passed + cases - failed_cases - left_out))
    if ((failed_cases)); then
      failures=$((failures + failed_cases - 1))
    else
      passed=$((passed - 1))
    fi
  done
}

# build_all PRESET: a failure if the build fails.
build_all() {
  echo "=== $1: build"
  build "$1" && return
  echo "$1: the build failed"
  failed=$((failed + 1))
  return 1
}

# test_all PRESET: the tests of its build.
test_all() {
  local preset=$1 report="$root/build/$1/ctest.xml"
  echo "=== $preset: tests"
  rm -rf "$report" "$root/build/$preset/acplan_cases"
  local status=0
  (cd "$root" && ctest --preset "$preset" --parallel "$(nproc)" \
    --output-junit "$report") || status=$?

  local failures=0
  if [[ -f $report ]]; then
    local tests disabled skipped
    tests=$(attribute tests "$report")
    failures=$(attribute failures "$report")
    disabled=$(attribute disabled "$report")
    skipped=$(attribute skipped "$report")
    passed=$((passed + tests - failures - disabled - skipped))
    count_cases "$root/build/$preset/acplan_cases"
  fi
  # ctest can fail without a failed test, say where it finds none.
  ((status == 0 || failures > 0)) || failures=1
  failed=$((failed + failures))
}

# Waits for the Python environment, which is installed in the background. A failure
# if there is none.
has_environment() {
  until [[ -e $root/build/environment.status ]]; do sleep 1; done
  [[ $(<"$root/build/environment.status") == 0 ]] && return
  cat "$environment_log"
  echo "no Python environment"
  failed=$((failed + 1))
  return 1
}

# test_python NAME FOLDER ARGUMENT...: tests of the release build by pytest, run in the
# folder.
test_python() {
  local name=$1 folder=$2 report="$root/build/$1.xml" status=0
  shift 2
  echo "=== $name"
  rm -f "$report"
  # One thread a process: the processes alone keep every core busy. Neighbours
  # go to one process where they can: they may share what is set up for a file.
  (cd "$folder" && HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
    ACPLAN="$root/build/release/cli/acplan" PYTHONPATH=. \
    "$python" -m pytest -q -p no:cacheprovider --junit-xml "$report" "$@") || status=$?
  local tests=0 failures=0 errors=0 skipped=0
  if [[ -f $report ]]; then
    local suite
    suite=$(grep -o '<testsuite [^>]*>' "$report" | head -n 1)
    count() { sed -n "s/.* $1=\"\([0-9]*\)\".*/\1/p" <<<"$suite"; }
    tests=$(count tests)
    failures=$(count failures)
    errors=$(count errors)
    skipped=$(count skipped)
  fi
  failures=$((failures + errors))
  passed=$((passed + tests - failures - skipped))
  ((status == 0 || failures > 0)) || failures=1
  failed=$((failed + failures))
}

# The adapter's tests, all or the files given.
test_adapter() {
  test_python adapter "$root/adapters/torch" -n auto --dist worksteal "$@"
}

# The wheel of the release build, whose objects it is made of: one test.
test_wheel() {
  local folder="$root/build/wheel_test"
  echo "=== wheel"
  rm -rf "$folder"
  if "$python" -m pip wheel "$root" --quiet --disable-pip-version-check --no-cache-dir \
    --no-build-isolation --no-deps --wheel-dir "$folder" -C build-dir="$root/build/release" &&
    "$python" "$root/tests/install/try_wheel.py" "$folder"/acplan-*.whl "$root/README.md"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
}

# A few of the programs that a campaign has HiGHS solve.
test_programs() {
  local folder="$root/build/programs"
  echo "=== programs by HiGHS"
  rm -rf "$folder"
  if "$root/build/release/tests/campaigns/write_milps" random "$folder" 300 |
    "$python" "$root/tests/campaigns/check_milps.py" "$folder"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
}

# node, zsh, groff and Chromium run what acplan writes for browsers, shells and manuals.
install_packages "${build_packages[@]}" chromium clang-format groff-base nodejs zsh

# Downloads and unpacks, while the compilers run.
mkdir -p "$root/build"
environment_log="$root/build/environment.log"
rm -f "$root/build/environment.status"
{
  status=0
  (python_environment accelerate==1.15.0 axe-playwright-python==0.1.8 codespell==2.4.3 \
    diffusers==0.42.1 expecttest highspy==1.15.1 lightning==2.6.6 megatron-core==0.16.1 \
    mypy==2.4.1 peft==0.21.2 playwright==1.65.2 'pulp<4' pwlf pytest pytest-xdist ruff==0.17.6 \
    'scikit-build-core>=0.11' tqdm triton==3.8.0) >"$environment_log" 2>&1 || status=$?
  echo "$status" >"$root/build/environment.status"
} &

# Reads the sources by one process at a time.
test_sources() {
  echo "=== format"
  if ! "$root/scripts/format.sh" --check; then
    echo "format: run scripts/format.sh"
    failed=$((failed + 1))
  fi
  if [[ -x $python ]]; then
    echo "=== lint"
    "$root/scripts/lint.sh" || failed=$((failed + 1))
  fi
}

# All that needs the program of the release build, Python and the sources, but no test of
# C++. Writes what it counted to build/beside.counts. The wheel configures the release build
# again, so it comes after everything that uses that.
test_beside() {
  if [[ $released ]] && has_environment; then
    if [[ $quick ]]; then
      test_adapter tests/test_{applying,planning,tracing,versions}.py
    else
      test_adapter
      test_python pages "$root" tests/browser
      test_programs
    fi
  fi
  test_sources
  if [[ ! $quick && -x $python ]]; then
    until [[ -e $root/build/release.tested ]]; do sleep 1; done
    test_wheel
  fi
  echo "$passed $failed" >"$root/build/beside.counts"
}

# Two things run at a time from here on, each with a process a core: one keeps the cores
# busy while the other links or waits for its longest test. In the background (set -m) a
# group of processes of its own does not ignore interrupts, which some tests send.
released=1
build_all release || released=
rm -f "$root"/build/{beside.counts,release.tested}
passed_before=$passed failed_before=$failed
set -m
test_beside >"$root/build/beside.log" 2>&1 </dev/null &
beside=$!
set +m
trap 'kill -- "-$beside" 2>/dev/null || true' EXIT

[[ ! $released ]] || test_all release
touch "$root/build/release.tested"
if [[ ! $quick ]] && build_all debug; then
  test_all debug
fi

wait "$beside" || true
cat "$root/build/beside.log"
if read -r beside_passed beside_failed 2>/dev/null <"$root/build/beside.counts"; then
  passed=$((passed + beside_passed - passed_before))
  failed=$((failed + beside_failed - failed_before))
else
  echo "tests beside those of C++ broke off"
  failed=$((failed + 1))
fi

echo "$passed passed, $failed failed"
((failed == 0))
