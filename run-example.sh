#!/usr/bin/env bash
# Installs what is missing, builds acplan into build/release and plans a bundled
# model. Arguments, where given, are acplan's instead:
#   ./run-example.sh plan data/profiles/llama8b.json.gz --budget 60GiB
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"

install_packages "${build_packages[@]}"
# Standard output is acplan's alone.
build release >&2 || fail "the build failed"

if (($# == 0)); then
  set -- plan "$root/data/profiles/gpt2_small.json.gz" --budget 10GiB
fi
exec "$root/build/release/cli/acplan" "$@"
