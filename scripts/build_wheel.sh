#!/usr/bin/env bash
# build_wheel.sh [FOLDER [PYTHON...]]: builds a wheel for any Linux on x86-64, into FOLDER
# (build/wheel).
#
# For the PyTorch of each interpreter PYTHON the wheel has the compiled stand-in for a CUDA device;
# with other versions of PyTorch, it is compiled on the user's machine.
#
# The program in it is static, the C library included, so that nothing on the machine
# where it runs can be too old or missing. Debian has all libraries of it as archives but
# oneTBB and fmt: of these the script compiles Debian's sources.
#
# Runs on Debian 12, as root or with sudo; installs what is missing. Python's part needs
# the network: pip fetches scikit-build-core, wheel and auditwheel.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

[[ ! -x ${1:-} || -d $1 ]] || fail "expected a folder before the interpreters, found: $1"
case $(uname -m) in
  x86_64) platforms=(manylinux_2_28_x86_64) ;;
  *) fail "expected a machine with x86-64, found $(uname -m)" ;;
esac
mkdir -p "${1:-$root/build/wheel}"
out=$(cd "${1:-$root/build/wheel}" && pwd)
pythons=("${@:2}")
work="$root/build/portable"
prefix="$work/prefix"

# sources PACKAGE...: unpacks Debian's sources of the packages into $work/sources. Lists
# of sources are kept there, and the machine's own left as they are.
sources() {
  local apt="$work/apt" file
  mkdir -p "$apt/parts" "$apt/lists/partial" "$work/sources"
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f $file ]] && sed 's/^Types:.*/Types: deb-src/' "$file" >"$apt/parts/${file##*/}"
  done
  sed 's/^deb /deb-src /' /etc/apt/sources.list >"$apt/sources.list" 2>/dev/null || true
  local options=(
    --quiet
    -o "Dir::Etc::sourcelist=$apt/sources.list"
    -o "Dir::Etc::sourceparts=$apt/parts"
    -o "Dir::State::lists=$apt/lists"
    -o "APT::Sandbox::User=$(id -un)"
  )
  apt-get "${options[@]}" update >&2 || fail "apt-get update of sources failed"
  (cd "$work/sources" && apt-get "${options[@]}" source "$@" >&2) ||
    fail "apt-get could not get the sources of: $*"
}

# static_library NAME CMAKE_ARGUMENT...: of the sources in $work/sources/NAME-*.
static_library() {
  local name=$1 folder
  shift
  folder=$(find "$work/sources" -maxdepth 1 -type d -name "$name-*" | sort | tail -n 1)
  cmake -S "$folder" -B "$work/$name" -G Ninja -D CMAKE_BUILD_TYPE=Release \
    -D CMAKE_INSTALL_PREFIX="$prefix" -D CMAKE_INSTALL_LIBDIR=lib \
    -D BUILD_SHARED_LIBS=OFF -D CMAKE_POSITION_INDEPENDENT_CODE=ON "$@" >&2 &&
    cmake --build "$work/$name" --parallel "$(build_jobs)" --target install >&2 ||
    fail "could not build $name"
}

# Debian's notes on the licences of what is inside of the program.
licenses() {
  local package
  rm -rf "$work/licenses"
  mkdir -p "$work/licenses"
  for package in coinor-libcbc-dev coinor-libclp-dev coinor-libcgl-dev coinor-libosi-dev \
    coinor-libcoinutils-dev liblapack-dev libblas-dev libbz2-dev zlib1g-dev libtbb-dev \
    libfmt-dev libyaml-cpp-dev libtomlplusplus-dev nlohmann-json3-dev libcli11-dev libjs-vega \
    libc6-dev libstdc++6; do
    cp "/usr/share/doc/$package/copyright" "$work/licenses/$package.copyright" ||
      fail "found no notes on the licence of $package"
  done
}

install_packages "${build_packages[@]}" dpkg-dev libbz2-dev liblapack-dev libblas-dev \
  python3-venv
[[ -f $prefix/lib/libtbb.a && -f $prefix/lib/libfmt.a ]] || {
  sources onetbb fmtlib
  # Nothing is loaded at run-time: not tbbmalloc, not hwloc.
  static_library onetbb -D TBB_TEST=OFF -D TBB_STRICT=OFF -D TBBMALLOC_BUILD=OFF \
    -D TBB_DISABLE_HWLOC_AUTOMATIC_SEARCH=ON \
    -D CMAKE_CXX_FLAGS=-D__TBB_WEAK_SYMBOLS_PRESENT=0
  static_library fmtlib -D FMT_TEST=OFF -D FMT_DOC=OFF
}
licenses

rm -rf "$work/guards"
mkdir -p "$work/guards"
for python in "${pythons[@]}"; do
  PYTHONPATH="$root/adapters/torch" PYTHONDONTWRITEBYTECODE=1 "$python" -c \
    'import sys; from acplan._device.guard_library import compile_into; compile_into(sys.argv[1])' \
    "$work/guards" || fail "could not compile the stand-in for the PyTorch of $python"
done

[[ -x $work/venv/bin/python ]] || python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  'scikit-build-core>=0.11' auditwheel wheel
rm -rf "$work/wheel"
CMAKE_BUILD_PARALLEL_LEVEL=$(build_jobs) "$work/venv/bin/python" -m pip wheel "$root" \
  --quiet --disable-pip-version-check --no-build-isolation --no-deps \
  --wheel-dir "$work/wheel" -C build-dir="$work/build" \
  -C cmake.define.ACPLAN_STATIC=ON -C cmake.define.CMAKE_PREFIX_PATH="$prefix" \
  -C cmake.define.ACPLAN_LICENSES="$work/licenses" \
  -C cmake.define.ACPLAN_GUARDS="$work/guards" || fail "could not build the wheel"

readelf --program-headers "$work/build/cli/acplan" | grep -q INTERP &&
  fail "the program is not static"
IFS=.
name=$("$work/venv/bin/python" -m wheel tags --remove --platform-tag "${platforms[*]}" \
  "$work"/wheel/acplan-*.whl)
mv "$work/wheel/$name" "$out/"
echo "$out/$name"
