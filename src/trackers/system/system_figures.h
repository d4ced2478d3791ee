#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/machine/proc_text.h"
#include "format/journal/journal_entry.h"
#include "trackers/system/nvml.h"

namespace accelerate::detail {

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
