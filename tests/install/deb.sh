#!/usr/bin/env bash
# deb.sh SOURCE BUILD LIBTORCH CXX: makes the Debian packages twice, and unpacks and uses them.
set -euo pipefail
source=$1 build=$2 libtorch=$3 cxx=$4
command -v dpkg-deb >/dev/null || { echo "skipped: no dpkg-deb"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for time in first second; do "$source/tools/package" deb "$build" --output $time >/dev/null; done
for file in first/*.deb; do
  cmp "$file" "second/${file#*/}"
  dpkg-deb -f "$file" Package Depends
  dpkg-deb -x "$file" root
done
! dpkg-deb -c first/accelerate-cpp_*.deb | grep -E 'libaccelerate\.so|/include/|/cmake/'
# Every package that is named exists here; the tool's library is in the same package.
for name in $(dpkg-deb -f first/accelerate-cpp_*.deb Depends | tr ',' '\n' | sed 's/(.*//'); do dpkg-query -W "$name" >/dev/null; done
root/usr/bin/accelerate-cpp --version
cmake -S "$source/tests/install/project" -B project -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_PREFIX_PATH="$work/root/usr" -DACCELERATE_LIBTORCH_DIR="$libtorch" >log || { cat log; exit 1; }
cmake --build project
project/consumer
