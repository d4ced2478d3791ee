#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>

namespace accelerate::detail {

/// The part of CUDA's driver that starts kernels, opened at run time.
class CudaDriver {
 public:
  using Module = void*;
  using Function = void*;

  /// Throws Error if there is no driver, or one without these functions.
  CudaDriver();

  /// The compute capability of a device: 90 for 9.0. `index` as LibTorch
  /// counts, which sees the same devices as the driver.
  [[nodiscard]] int capability(int index) const;
  [[nodiscard]] int num_multiprocessors(int index) const;

  /// Loads a compiled program into the context in which LibTorch computes on
  /// the device. It stays until the process ends.
  [[nodiscard]] Module load(int index, const std::string& program) const;
  [[nodiscard]] Function find(Module module, const char* entry) const;

  /// Queues a kernel. `arguments` points to each argument.
  void launch(
      int index,
      Function function,
      std::uint32_t blocks,
      std::uint32_t threads,
      void* stream,
      void** arguments) const;

 private:
  class ContextScope;
  struct Functions;
  const Functions* functions_;
};

}  // namespace accelerate::detail
