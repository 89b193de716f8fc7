#!/usr/bin/env bash
# Formats every C++ and Python source of acplan; with --check, changes nothing and fails
# where a C++ file is not formatted (scripts/lint.sh checks Python's).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Versions format differently; Debian 12's is the one that counts.
clang_format=$(command -v clang-format-14 || command -v clang-format) || {
  echo "format.sh: clang-format is not installed" >&2
  exit 1
}

mode=(-i)
[[ ${1:-} == --check ]] && mode=(--dry-run --Werror)

find . \( -path ./build -o -path ./.git \) -prune -o \
  \( -name '*.h' -o -name '*.cc' \) -type f -print0 |
  xargs -0 --no-run-if-empty "$clang_format" "${mode[@]}"

if [[ ${1:-} != --check ]]; then
  PATH="$PWD/build/venv/bin:$PATH" ruff format --quiet .
fi
