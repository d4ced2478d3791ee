#!/usr/bin/env bash
# run.sh find_package|add_subdirectory|pkg_config SOURCE BUILD LIBTORCH CXX: builds and runs a stranger's project.
set -euo pipefail
how=$1 source=$2 build=$3 libtorch=$4 cxx=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$source/tests/install/project

case $how in
  find_package|pkg_config) cmake --install "$build" --prefix "$work/prefix" >/dev/null ;;
esac
case $how in
  find_package)
    cmake -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" ||
      { cat "$work/log"; exit 1; }
    cmake --build "$work/build"
    "$work/prefix/bin/accelerate-cpp" launch --num_processes 2 "$work/build/stranger"
    cmake -S "$here" -B "$work/tensors" -DTENSORS_ONLY=ON -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" ||
      { cat "$work/log"; exit 1; }
    cmake --build "$work/tensors"
    (cd "$work" && ./tensors/tensors)
    ! ldd "$work/tensors/tensors" | grep -E "torch|yaml" ;;
  add_subdirectory)
    cmake -S "$here" -B "$work/build" -G Ninja -DACCELERATE_SOURCE="$source" -DACCELERATE_LIBTORCH_DIR="$libtorch" \
      -DCMAKE_BUILD_TYPE=Release -DACCELERATE_WARNINGS_AS_ERRORS=ON -DCMAKE_CXX_COMPILER="$cxx"
    if [ -n "${BUILD_LIBRARY_AGAIN:-}" ]; then
      cmake --build "$work/build" --target stranger
    else
      # The same sources were compiled a moment ago for the build under test, which takes minutes: what is asked here is
      # whether a stranger's project finds headers, flags and libraries, so the library is taken from there.
      cp -a "$build"/lib/libaccelerate*.so* "$work/build/accelerate/src/"
      (cd "$work/build" && ninja -t commands stranger | grep -F stranger.dir | bash -e)
    fi
    "$work/build/stranger" ;;
  pkg_config)
    export PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name accelerate.pc)")
    # The flags are words on purpose.
    $cxx "$here/main.cpp" -o "$work/stranger" $(pkg-config --cflags --libs accelerate)
    "$work/stranger" ;;
esac
