#!/usr/bin/env bash
# check_structure.sh ROOT: fails, with a line for each violation, where under
# ROOT
# - a folder includes or links a folder that it may not know;
# - a COIN-OR header is included outside of solver/cbc_solver.cc and
#   solver/lp_solver.cc;
# - an #include "..." is not "folder/header";
# - a header does not begin with #pragma once (comments may come before);
# - x.cc does not include its own x.h first.
# Every folder shares one include root, so the compiler notices none of this.
set -euo pipefail
cd "$1"

# Which folders each folder may know, itself included.
declare -A may_know=(
  [graph]="graph"
  [solver]="solver"
  [costmodel]="costmodel graph"
  [problems]="problems solver graph"
  [cli]="cli problems costmodel solver graph"
)

violations=0
violation() {
  echo "$*"
  violations=$((violations + 1))
}

# includes FILE: the headers FILE includes, one a line, with their " or <.
includes() {
  sed -n 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*\(["<][^">]*\)[">].*/\1/p' "$1"
}

# check_knows FOLDER WHERE OTHER
check_knows() {
  [[ " ${may_know[$1]} " == *" $3 "* ]] ||
    violation "$2: $1/ may not know $3/ (only: ${may_know[$1]})"
}

check_file() {
  local folder=$1 file=$2 include header
  while read -r include; do
    header=${include:1}
    if [[ $include == \"* && $header != */* ]]; then
      violation "$file: write \"folder/$header\""
    elif [[ $header == */* && -n ${may_know[${header%%/*}]:-} ]]; then
      check_knows "$folder" "$file" "${header%%/*}"
    elif [[ $include == \"* ]]; then
      violation "$file: \"$header\" is in no folder of the library"
    elif [[ ${header##*/} =~ ^(Cbc|Cgl|Osi|Clp|Coin) &&
      ! $file =~ ^solver/(cbc|lp)_solver\.cc$ ]]; then
      violation "$file: <$header> belongs in solver/cbc_solver.cc or lp_solver.cc"
    fi
  done < <(includes "$file")
}

check_header_start() {
  local first
  first=$(grep -v -m 1 -e '^[[:space:]]*$' -e '^//' "$1" || true)
  [[ $first == "#pragma once" ]] || violation "$1: does not begin with #pragma once"
}

check_own_header_first() {
  local own=${1%.cc}.h
  [[ ! -e $own || $(includes "$1" | head -n 1) == "\"$own" ]] ||
    violation "$1: does not include \"$own\" first"
}

for folder in "${!may_know[@]}"; do
  while IFS= read -r file; do
    check_file "$folder" "$file"
    case $file in
      *.h) check_header_start "$file" ;;
      *.cc) check_own_header_first "$file" ;;
    esac
  done < <(find "$folder" -name '*.h' -o -name '*.cc')

  if [[ -e $folder/CMakeLists.txt ]]; then
    while read -r linked; do
      check_knows "$folder" "$folder/CMakeLists.txt" "$linked"
    done < <(grep -o 'acplan::[a-z]*' "$folder/CMakeLists.txt" |
      sed 's/acplan:://' | sort -u)
  fi
done

((violations == 0))
