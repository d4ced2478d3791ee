#!/usr/bin/env bash
# tarballs.sh SOURCE BUILD LIBTORCH CXX: unpacks both tarballs in a clean folder, runs the tool without LibTorch, and builds
# a project with LibTorch beside the library.
set -euo pipefail
source=$1 build=$2 libtorch=$3 cxx=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$source/tools/package" tarballs "$build" --output dist >/dev/null

mkdir tool && tar -xzf "$(ls dist/*.tar.gz | grep -v libtorch)" -C tool
tool=$(echo tool/*/bin/accelerate-cpp)
"$tool" --version
"$tool" launch --num_processes 2 /bin/echo started | sort
! ldd "$tool" | grep -E 'not found|libtorch|libyaml-cpp\.so'
ls tool/*/share/man/man1/accelerate-cpp-launch.1 tool/*/share/bash-completion/completions/accelerate-cpp >/dev/null

mkdir library && tar -xzf dist/*libtorch*.tar.gz -C library
ln -s "$libtorch" library/torch
cmake -S "$source/tests/install/project" -B project -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_PREFIX_PATH="$(echo "$work"/library/accelerate-cpp-*)" >log ||
  { cat log; exit 1; }
grep "LibTorch .*library/torch" log
cmake --build project
project/consumer
