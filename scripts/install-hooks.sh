#!/usr/bin/env bash
# Installs this clone's git hooks: pre-commit checks the format of what is
# committed, pre-push offers to run the quick tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for name in pre-commit pre-push; do
  hook=$(git rev-parse --git-path hooks)/$name
  if [[ -e $hook ]] && ! grep -q "$name hook of acplan" "$hook"; then
    echo "install-hooks.sh: $hook exists and is not ours; left alone" >&2
    exit 1
  fi
  mkdir -p "$(dirname "$hook")"
  install -m 755 "scripts/$name" "$hook"
  echo "Installed $hook"
done
