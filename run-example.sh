#!/usr/bin/env bash
# Installs what is missing, builds acplan into build/release, and plans a PyTorch
# model: examples/first_plan.py. With arguments it runs acplan with them instead,
# and needs no Python:
#   ./run-example.sh plan data/profiles/llama8b.json.gz --budget 60GiB
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/scripts/setup.sh"

install_packages "${build_packages[@]}"
environment=
if (($# == 0)); then
  # Downloads and unpacks, while the compilers run.
  mkdir -p "$root/build"
  python_environment tqdm >&2 &
  environment=$!
fi
# Standard output is the plan's alone.
build release acplan_main >&2 || fail "the build failed"
program="$root/build/release/cli/acplan"
if (($#)); then
  exec "$program" "$@"
fi

wait "$environment" || fail "no Python environment with PyTorch"
ACPLAN=$program PYTHONPATH="$root/adapters/torch" TRANSFORMERS_VERBOSITY=error \
  exec "$python" "$root/examples/first_plan.py"
