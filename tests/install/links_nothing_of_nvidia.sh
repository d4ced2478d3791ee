#!/bin/bash
# links_nothing_of_nvidia.sh FILE...: fails if a library or program needs a library of NVIDIA, or one of LibTorch's that does, or
# expects functions of CUDA, NCCL, NVML or NVRTC to be there when it is loaded.
set -eu
for file in "$@"; do
  needed=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  if grep -E '^lib(cu|nv|nccl)|cuda' <<< "$needed"; then
    echo "$file must need no library of NVIDIA, but needs the above" >&2
    exit 1
  fi
  # Functions of LibTorch have "cuda" within their names, C++'s mangled ones begin with _Z.
  if nm -D --undefined-only "$file" | awk '{print $NF}' | grep -E '^(nccl|cuda|nvml|nvrtc|cu[A-Z])'; then
    echo "$file must find functions of NVIDIA at run time, but links the above" >&2
    exit 1
  fi
  echo "$file: $(wc -l <<< "$needed") libraries, none of NVIDIA"
done
