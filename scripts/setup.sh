# Set-up shared by run-example.sh and run-tests.sh, which source it. Installs
# Debian 12 and Python packages, and only those that are missing.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_packages=(
  g++ cmake ninja-build pkg-config
  coinor-libcbc-dev coinor-libclp-dev coinor-libcoinutils-dev
  nlohmann-json3-dev libcli11-dev libfmt-dev libtbb-dev zlib1g-dev libjs-vega
  libtomlplusplus-dev libyaml-cpp-dev
  libgtest-dev libgmock-dev libbenchmark-dev
)

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# install_packages NAME...
install_packages() {
  command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
    fail "needs apt-get (Debian 12) to install: $*"

  local missing=() package
  for package in "$@"; do
    dpkg-query --show --showformat='${db:Status-Status}\n' "$package" \
      2>/dev/null | grep -qx installed || missing+=("$package")
  done
  ((${#missing[@]})) || return 0

  local as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null ||
      fail "run me as root, or install sudo, to install: ${missing[*]}"
    as_root=(sudo)
    # Nobody is there to type a password.
    [[ -t 0 ]] || as_root+=(--non-interactive)
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get --quiet --yes)

  echo "Installing ${missing[*]}" >&2
  "${as_root[@]}" update >&2 </dev/null || fail "apt-get update failed"
  "${as_root[@]}" install --no-install-recommends "${missing[@]}" >&2 \
    </dev/null || fail "apt-get could not install: ${missing[*]}"
}

# How many compilers may run at once: one a core, and 2 GiB of memory each.
build_jobs() {
  local cores kib limit
  cores=$(nproc)
  kib=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
  # A container may have less than the machine ("max": no limit).
  limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null || echo max)
  if [[ $limit != max ]] && ((limit / 1024 < kib)); then
    kib=$((limit / 1024))
  fi
  local jobs=$((kib / (2 * 1024 * 1024)))
  ((jobs <= cores)) || jobs=$cores
  ((jobs >= 1)) || jobs=1
  echo "$jobs"
}

# build PRESET [TARGET...]: configures and builds into build/PRESET. Several
# sources at a time, since it is most often the first build.
build() {
  (
    cd "$root"
    local preset=$1
    shift
    cmake --preset "$preset" -D ACPLAN_UNITY=ON &&
      cmake --build --preset "$preset" --parallel "$(build_jobs)" ${1:+--target "$@"}
  )
}

python="$root/build/venv/bin/python"

# python_environment PACKAGE...: installs them for $python. PyTorch's version is
# the one that expectations were measured on. Python compiles what it imports, so pip
# need not compile everything.
python_environment() {
  python3 -c 'import ensurepip, venv' 2>/dev/null ||
    install_packages python3 python3-venv
  { [[ -x $python ]] || python3 -m venv "$root/build/venv"; } &&
    "$python" -m pip install --quiet --disable-pip-version-check --no-compile \
      torch==2.13.0 transformers==5.23.0 numpy "$@"
}

# CMake reads this variable when it first configures a build folder. ccache
# needs a home to keep its cache in.
if command -v ccache >/dev/null && [[ -w ${HOME:-} ]]; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
