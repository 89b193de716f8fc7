#!/usr/bin/env bash
# check_docs.sh ROOT: every relative link of a Markdown file leads somewhere, no file
# under docs/ is without a link to it, and no merge has left its marks.
set -euo pipefail
cd "$1"
status=0
linked=()
while IFS= read -r file; do
  while IFS= read -r link; do
    target=$(dirname "$file")/${link%%#*}
    if [[ -e $target ]]; then
      linked+=("$(realpath "$target")")
    else
      echo "$file: the link to $link leads nowhere"
      status=1
    fi
  done < <(grep -o '](\([^)]*\))' "$file" | sed 's/^](//; s/)$//' |
    grep -v '^https\?:\|^#\|^$' || true)
done < <(find . -name '*.md' -not -path './build/*')
while IFS= read -r file; do
  # To the end: a pipe that grep leaves early would fail.
  if ! printf '%s\n' "${linked[@]}" | grep -xF "$(realpath "$file")" >/dev/null; then
    echo "$file: no link leads here"
    status=1
  fi
done < <(find docs -type f)
if grep -rnE '^(<{7}|>{7}) ' --include='*.md' --exclude-dir=build .; then
  echo "a merge has left its marks"
  status=1
fi
exit "$status"
