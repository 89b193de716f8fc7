#!/usr/bin/env bash
# self_test.sh: write_command_line.py fills a page, and with --check finds a flag whose text has
# changed and a command without a block.
set -euo pipefail
script=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../scripts/write_command_line.py")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# program TEXT: makes a program with one flag, which TEXT describes.
program() {
  printf '#!/bin/sh\nprintf "Plans\\nUsage: acplan [OPTIONS]\\n\\nOptions:\\n  --most N   %s\\n"\n' \
    "$1" >acplan
  chmod +x acplan
}

program 'at most N'
printf '<!-- acplan --help -->\n<!-- end -->\nProse.\n' >page.md
python3 "$script" ./acplan page.md
grep -q -e '--most N   at most N' page.md
grep -q 'Prose' page.md
python3 "$script" ./acplan page.md --check
program 'N or fewer'
if python3 "$script" ./acplan page.md --check; then
  echo "a changed flag was not found"
  exit 1
fi
printf 'Prose.\n' >page.md
if python3 "$script" ./acplan page.md --check; then
  echo "a command without a block was not found"
  exit 1
fi
