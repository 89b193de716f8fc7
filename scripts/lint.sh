#!/usr/bin/env bash
# Checks what is committed without running it: ruff reads all Python (findings and format),
# mypy the package, codespell the spelling; files of more than 500 kB, and files that a tool
# generates, are refused.
# Prints every finding, and fails where there is one. Needs the tools in build/venv, where
# run-tests.sh installs them, or on the PATH.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/build/venv/bin:$PATH"

failed=0
# check NAME COMMAND...: runs the command, and notes a failure if it has findings.
check() {
  local name=$1
  shift
  "$@" || {
    echo "lint.sh: $name has findings" >&2
    failed=1
  }
}

in_package() { (cd adapters/torch && mypy --config-file ../../pyproject.toml -p acplan); }

spelling() { git ls-files -z '*.md' '*.py' '*.sh' '*.h' '*.cc' '*.txt' | xargs -0 codespell; }

sizes() {
  local file bytes found=0
  while IFS= read -r -d '' file; do
    bytes=$(stat --format=%s "$file" 2>/dev/null) || continue
    if ((bytes > 500000)); then
      echo "$file: $bytes bytes, more than 500,000"
      found=1
    fi
  done < <(git ls-files -z)
  return "$found"
}

generated() {
  ! git ls-files | grep -E '(^|/)(build|__pycache__|\.[a-z]+_cache|[^/]*\.egg-info)/|\.(pyc|o|a|so)$'
}

check "ruff" ruff check --quiet --output-format concise .
check "ruff format (scripts/format.sh mends it)" ruff format --quiet --check .
check "mypy" in_package
check "codespell" spelling
check "the size of files" sizes
check "the list of generated files" generated
exit "$failed"
