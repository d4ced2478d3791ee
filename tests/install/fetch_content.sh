#!/usr/bin/env bash
# fetch_content.sh SOURCE BUILD LIBTORCH CXX: a project gets the sources as an archive, by FetchContent. The library is
# copied from the build under test, because compiling it again takes minutes.
set -euo pipefail
source=$1 build=$2 libtorch=$3 cxx=$4
git -C "$source" rev-parse HEAD >/dev/null 2>&1 || { echo "skipped: not a git repository"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$source" && git ls-files -z --cached --others --exclude-standard -- CMakeLists.txt LICENSE cmake include src cli libexec |
  tar -czf "$work/accelerate.tar.gz" --null -T - --transform 's,^,accelerate.cpp/,')
cp "$source/tests/install/project/main.cpp" "$work/"
cat >"$work/CMakeLists.txt" <<EOF
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
include(FetchContent)
FetchContent_Declare(accelerate URL "$work/accelerate.tar.gz" DOWNLOAD_EXTRACT_TIMESTAMP ON)
FetchContent_MakeAvailable(accelerate)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE accelerate::accelerate)
EOF
cmake -S "$work" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$cxx" -DACCELERATE_LIBTORCH_DIR="$libtorch" >"$work/log" ||
  { cat "$work/log"; exit 1; }
cp -a "$build"/lib/libaccelerate*.so* "$work/build/_deps/accelerate-build/src/"
cd "$work/build"
ninja -t commands consumer | grep -F consumer.dir | bash -e
./consumer
