#!/usr/bin/env bash
# build_wheel.sh [--for MACHINE] [FOLDER [PYTHON...]]: builds a wheel for any Linux on MACHINE,
# x86_64 or aarch64 (this machine's own), into FOLDER (build/wheel).
#
# A wheel for another machine is cross-compiled, with Debian's compiler and archives for it.
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

machine=$(uname -m)
if [[ ${1:-} == --for ]]; then
  machine=${2:-}
  shift 2 || fail "--for: expected x86_64 or aarch64"
fi
case $machine in
  x86_64) architecture=amd64 ;;
  aarch64) architecture=arm64 ;;
  *) fail "expected a machine of x86_64 or aarch64, found: $machine" ;;
esac
[[ ! -x ${1:-} || -d $1 ]] || fail "expected a folder before the interpreters, found: $1"
mkdir -p "${1:-$root/build/wheel}"
out=$(cd "${1:-$root/build/wheel}" && pwd)
pythons=("${@:2}")
is_cross=$([[ $machine == "$(uname -m)" ]] || echo yes)
[[ -z $is_cross || ${#pythons[@]} == 0 ]] ||
  fail "--for $machine: the stand-in is compiled by interpreters of that machine"
triple="$machine-linux-gnu"
work="$root/build/portable${is_cross:+-$machine}"
prefix="$work/prefix"
sysroot="$work/sysroot"

# apt_of TYPE ARCHITECTURE FOLDER COMMAND...: runs a command of apt-get in FOLDER, on Debian's
# lists of that type (deb, deb-src). They are kept in $work, and the machine's own left as
# they are.
apt_of() {
  local type=$1 folder=$3 apt="$work/apt-$1" file
  local options=(
    --quiet
    -o "APT::Architecture=$2" -o "APT::Architectures=$2"
    -o "Dir::Etc::sourcelist=$apt/sources.list"
    -o "Dir::Etc::sourceparts=$apt/parts"
    -o "Dir::State::lists=$apt/lists"
    -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
    -o "APT::Sandbox::User=$(id -un)"
  )
  shift 3
  mkdir -p "$apt/parts" "$apt/lists/partial" "$folder"
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f $file ]] && sed "s/^Types:.*/Types: $type/" "$file" >"$apt/parts/${file##*/}"
  done
  sed "s/^deb /$type /" /etc/apt/sources.list >"$apt/sources.list" 2>/dev/null || true
  apt-get "${options[@]}" update >&2 || fail "apt-get update of $type failed"
  (cd "$folder" && apt-get "${options[@]}" "$@" >&2) || fail "apt-get could not $*"
}

# Fills $sysroot with headers and archives for the other machine, and sets what makes CMake
# use them. The C and C++ libraries are the cross compiler's own.
enter_sysroot() {
  local package
  [[ -f $sysroot/usr/lib/$triple/liblapack.a ]] || {
    apt_of deb "$architecture" "$work/packages" download coinor-libcbc-dev coinor-libclp-dev \
      coinor-libcgl-dev coinor-libosi-dev coinor-libcoinutils-dev zlib1g-dev libbz2-dev \
      liblapack-dev libblas-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev \
      libtomlplusplus-dev
    for package in "$work"/packages/*.deb; do dpkg-deb --extract "$package" "$sysroot"; done
    # These names are made when the packages are installed.
    ln -sf lapack/liblapack.a blas/libblas.a "$sysroot/usr/lib/$triple/"
  }
  cat >"$work/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR $machine)
set(CMAKE_C_COMPILER $triple-gcc)
set(CMAKE_CXX_COMPILER $triple-g++)
set(CMAKE_LIBRARY_ARCHITECTURE $triple)
set(CMAKE_FIND_ROOT_PATH $prefix $sysroot)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(VEGA_FOLDER /usr/share/javascript/vega CACHE PATH "")
END
  export CMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" PKG_CONFIG_SYSROOT_DIR="$sysroot"
  export PKG_CONFIG_LIBDIR="$sysroot/usr/lib/$triple/pkgconfig:$sysroot/usr/share/pkgconfig"
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
  python3-venv ${is_cross:+"g++-${machine//_/-}-linux-gnu"}
[[ -z $is_cross ]] || enter_sysroot
[[ -f $prefix/lib/libtbb.a && -f $prefix/lib/libfmt.a ]] || {
  apt_of deb-src "$(dpkg --print-architecture)" "$work/sources" source onetbb fmtlib
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
name=$("$work/venv/bin/python" -m wheel tags --remove --platform-tag "manylinux_2_28_$machine" \
  "$work"/wheel/acplan-*.whl)
mv "$work/wheel/$name" "$out/"
echo "$out/$name"
