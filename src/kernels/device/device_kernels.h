#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "kernels/device/sources.h"

namespace accelerate::detail {

/// A kernel that is loaded on a device, or a function that does the same in host
/// memory, for tests.
class DeviceKernel {
 public:
  /// Queues the kernel on the current stream, in at least one block and at most
  /// 2^31 - 1. The types of the arguments are those of the kernel's
  /// parameters. Throws Error if the driver refuses it.
  template <class... Arguments>
  void launch(std::int64_t blocks, Arguments... arguments) const {
    std::array<void*, sizeof...(arguments)> pointers{&arguments...};
    launch_with(blocks, pointers.data());
  }

  c10::Device device{c10::kCPU};
  void* function = nullptr;
  std::function<void(std::int64_t blocks, void** arguments)> emulation =
      nullptr;

 private:
  void launch_with(std::int64_t blocks, void** arguments) const;
};

/// While it lives, the kernels for tensors in host memory on this thread come
/// from a function: tests run the text of the kernels on the processor. The
/// function returns null for programs that it lacks.
class EmulatedKernels {
 public:
  using Find = std::function<const DeviceKernel*(
      const KernelProgram& program,
      std::string_view entry)>;
  explicit EmulatedKernels(Find find);
  EmulatedKernels(const EmulatedKernels&) = delete;
  EmulatedKernels& operator=(const EmulatedKernels&) = delete;
  ~EmulatedKernels();

 private:
  Find find_;
};

/// Whether find_kernel() may find any for this device.
bool may_have_kernels(c10::Device device);

/// Returns a kernel for a CUDA device, compiled when it is first needed and
/// kept in the cache directory. Null if there cannot be one: on other devices,
/// without the compiler, or where it failed on this device; the caller then
/// uses LibTorch's operators. Thread-safe.
const DeviceKernel* find_kernel(
    c10::Device device,
    const KernelProgram& program,
    const char* entry);

/// Why kernels are not used on a CUDA device although they could be: the first
/// reason that find_kernel() had to return null, or that its caller noted; empty
/// if there is none.
std::string missing_kernels();
void note_missing_kernels(const std::string& reason);

/// Whether kernels may read and write a tensor's memory directly: not if
/// something intercepts its operators, such as the gate, whose weights' memory
/// comes and goes, or if its values are conjugated or negated lazily.
bool has_plain_memory(const at::Tensor& tensor);

/// Number of blocks that keep a device busy: `most`, or fewer if kernels take
/// further pieces themselves.
std::int64_t num_blocks_for(c10::Device device, std::int64_t most);

/// What a compiled program depends on: its source, its macros, the device's
/// compute capability, and the compiler's version.
std::string program_key(
    const KernelProgram& program,
    int capability,
    std::string_view compiler);

/// The macro VALUE of a dtype; null for dtypes without kernels.
const char* kernel_value(at::ScalarType dtype);

}  // namespace accelerate::detail
