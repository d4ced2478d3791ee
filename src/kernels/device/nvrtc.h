#pragma once

#include <string>
#include <vector>

#include "kernels/device/sources.h"

namespace accelerate::detail {

/// NVIDIA's run-time compiler. It comes with LibTorch's CUDA library; compiling
/// for a device needs neither CUDA headers nor the device.
class Nvrtc {
 public:
  /// The names under which the system's loader is asked for it, in order.
  static std::vector<std::string> default_names();

  /// Opens the first of the libraries that can be opened; those that the
  /// process has already loaded come first. Throws Error naming all that were
  /// tried, and why the last could not be opened.
  explicit Nvrtc(const std::vector<std::string>& names = default_names());

  /// "13.5".
  [[nodiscard]] std::string version() const;

  /// Compiles for a compute capability, such as 90: a binary for that
  /// architecture or, if the compiler is older than the device, PTX for the
  /// newest one that it knows. Throws Error with the compiler's messages.
  /// Thread-safe.
  [[nodiscard]] std::string compile(
      const KernelProgram& program,
      int capability) const;

 private:
  struct Functions;
  // Never unloaded: modules and other threads may need it until the end.
  const Functions* functions_;
};

}  // namespace accelerate::detail
