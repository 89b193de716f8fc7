#!/usr/bin/env bash
# Installs scripts/pre-commit as this clone's git pre-commit hook.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hook=$(git rev-parse --git-path hooks)/pre-commit
if [[ -e $hook ]] && ! grep -q 'pre-commit hook of acplan' "$hook"; then
  echo "install-pre-commit.sh: $hook exists and is not ours; left alone" >&2
  exit 1
fi
mkdir -p "$(dirname "$hook")"
install -m 755 scripts/pre-commit "$hook"
echo "Installed $hook"
