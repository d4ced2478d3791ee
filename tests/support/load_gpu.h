#pragma once

#include <dlfcn.h>

#include <string>

#include <ATen/detail/CUDAHooksInterface.h>

namespace accelerate::testing {

/// Why this machine has no CUDA device for tests; empty if it has one. Test
/// programs are not linked with LibTorch's CUDA library: loading it registers
/// its kernels.
inline const std::string& missing_gpu() {
  static const std::string reason = []() -> std::string {
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr)
      return std::string("LibTorch's CUDA library cannot be loaded: ") +
          dlerror();
    return at::detail::getCUDAHooks().hasCUDA()
        ? ""
        : "this machine has no CUDA device";
  }();
  return reason;
}

}  // namespace accelerate::testing
