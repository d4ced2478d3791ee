// Prints what LibTorch finds on this machine, one line per property, for
// `accelerate-cpp env`.
#include <cstdio>
#include <exception>
#include <string>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/empty.h>
#include <torch/headeronly/version.h>

#include "base/machine/gpu_links.h"
#include "config/environment.h"

namespace {

void say(const char* name, const std::string& value) {
  std::printf("%s\t%s\n", name, value.c_str());
}

}  // namespace

int main() {
  try {
    say("LibTorch", TORCH_VERSION);
    const auto& hooks = at::detail::getCUDAHooks();
    const bool has_cuda = at::hasCUDA();
    say("CUDA in LibTorch", has_cuda ? "yes" : "no");
    const int devices = has_cuda ? static_cast<int>(hooks.deviceCount()) : 0;
    say("CUDA devices LibTorch sees", std::to_string(devices));
    say("Threads of LibTorch",
        std::to_string(at::get_num_threads()) + " within an operation, " +
            std::to_string(at::get_num_interop_threads()) + " between");
    say("Processor's instructions", at::get_cpu_capability());
    say("MKL in LibTorch", at::hasMKL() ? "yes" : "no");
    using accelerate::detail::Environment;
    for (const auto& [name, value] : accelerate::detail::nvidia_facts(
             accelerate::detail::open_nccl(
                 Environment::current().get("ACCELERATE_NCCL_LIBRARY"),
                 reinterpret_cast<const void*>(
                     &at::_ops::empty_memory_format::call)),
             accelerate::detail::open_nvml_links()))
      say(name.c_str(), value);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
