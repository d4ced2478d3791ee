#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/machine/proc_text.h"
#include "format/journal/journal_entry.h"

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

/// Reads figures of this process and its machine.
class SystemReader {
 public:
  /// Records the current counters. `root`: the directory that contains /proc
  /// and /sys; `nvml` may be null.
  explicit SystemReader(
      std::filesystem::path root,
      std::unique_ptr<Nvml> nvml = nullptr);

  /// cpu_percent, over all processors since the last call; process_mb and
  /// machine_mb, memory in use (in the container, if its memory is limited);
  /// disk_read_mb, disk_write_mb, network_in_mb, network_out_mb, since the
  /// reader was made; device.N.memory_mb and device.N.utilization_percent. 1 MB
  /// is 10^6 bytes. What the system does not report is left out.
  [[nodiscard]] std::vector<JournalScalars::Scalar> figures();
  /// process_mb alone.
  [[nodiscard]] std::optional<double> process_mb() const;

 private:
  [[nodiscard]] std::string read(const std::filesystem::path& path) const;
  [[nodiscard]] std::optional<std::uint64_t> machine_bytes() const;
  [[nodiscard]] std::optional<std::uint64_t> container_bytes(
      std::uint64_t machine_total) const;

  std::filesystem::path root_;
  std::unique_ptr<Nvml> nvml_;
  std::optional<CpuTicks> ticks_;
  ByteCounts disk_;
  ByteCounts network_;
};

}  // namespace accelerate::detail
