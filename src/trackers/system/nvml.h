#pragma once

#include <memory>
#include <vector>

namespace accelerate::detail {

/// One NVIDIA device as the driver reports it.
struct DeviceFigures {
  double memory_mb = 0;
  double utilization_percent = 0;
};

/// NVIDIA's management library, loaded if the machine has it.
class Nvml {
 public:
  /// Null where there is no such library, driver or device.
  static std::unique_ptr<Nvml> load();

  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml();

  /// Devices in the driver's order; figures of devices that do not answer are
  /// 0.
  [[nodiscard]] std::vector<DeviceFigures> devices() const;

 private:
  struct Library;

  explicit Nvml(std::unique_ptr<Library> library);

  std::unique_ptr<Library> library_;
};

}  // namespace accelerate::detail
