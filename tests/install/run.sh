#!/usr/bin/env bash
# run.sh find_package|add_subdirectory|pkg_config SOURCE BUILD LIBTORCH CXX [SANITIZERS]: builds and runs a project that uses the library.
set -euo pipefail
method=$1 source=$2 build=$3 libtorch=$4 cxx=$5
# A library built with sanitizers needs them in the program, too.
[ -z "${6:-}" ] || export CXXFLAGS="-fsanitize=$6" LDFLAGS="-fsanitize=$6"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$source/tests/install/project

case $method in
  find_package|pkg_config) cmake --install "$build" --prefix "$work/prefix" >/dev/null ;;
esac
case $method in
  find_package)
    cmake -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" ||
      { cat "$work/log"; exit 1; }
    cmake --build "$work/build"
    "$work/prefix/bin/accelerate-cpp" launch --num_processes 2 "$work/build/consumer"
    cmake -S "$here" -B "$work/tensors" -DTENSORS_ONLY=ON -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" ||
      { cat "$work/log"; exit 1; }
    cmake --build "$work/tensors"
    (cd "$work" && ./tensors/tensors)
    ! ldd "$work/tensors/tensors" | grep -E "torch|yaml" ;;
  add_subdirectory)
    cmake -S "$here" -B "$work/build" -G Ninja -DACCELERATE_SOURCE="$source" -DACCELERATE_LIBTORCH_DIR="$libtorch" \
      -DCMAKE_BUILD_TYPE=Release -DACCELERATE_WARNINGS_AS_ERRORS=ON -DCMAKE_CXX_COMPILER="$cxx"
    if [ -n "${BUILD_LIBRARY_AGAIN:-}" ]; then
      cmake --build "$work/build" --target consumer
    else
      # Copies the library from the build under test, because compiling it again takes minutes and this test only checks
      # that another project finds headers, flags and libraries.
      cp -a "$build"/lib/libaccelerate*.so* "$work/build/accelerate/src/"
      (cd "$work/build" && ninja -t commands consumer | grep -F consumer.dir | bash -e)
    fi
    "$work/build/consumer" ;;
  pkg_config)
    export PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name accelerate.pc)")
    # Unquoted on purpose, so that the flags are split into words.
    $cxx ${CXXFLAGS:-} "$here/main.cpp" -o "$work/consumer" $(pkg-config --cflags --libs accelerate)
    "$work/consumer" ;;
esac
