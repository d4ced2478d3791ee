#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trackers/system/nvml.h"
#include "trackers/system/proc_text.h"

namespace accelerate::detail {

/// Reads figures of this process and its machine.
class SystemReader {
 public:
  /// Remembers where counters are. `root`: the directory with /proc and /sys;
  /// `nvml` may be null.
  explicit SystemReader(
      std::filesystem::path root,
      std::unique_ptr<Nvml> nvml = nullptr);

  /// One JSON object: cpu_percent, of all processors since the last call;
  /// process_mb and machine_mb, memory in use (in the container, if its memory
  /// is limited); disk_read_mb, disk_write_mb, network_in_mb, network_out_mb,
  /// since the reader was made; device.N.memory_mb and
  /// device.N.utilization_percent. MB are 10^6 bytes. What the system does not
  /// tell is left out.
  [[nodiscard]] std::string json();

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

/// Calls a function with the figures at intervals, on a thread of its own, from
/// one interval after it was made until it is destroyed.
class SystemFigures {
 public:
  using Report = std::function<void(std::string json)>;

  SystemFigures(std::chrono::milliseconds interval, Report report);
  SystemFigures(
      std::chrono::milliseconds interval,
      Report report,
      std::unique_ptr<SystemReader> reader);
  SystemFigures(const SystemFigures&) = delete;
  SystemFigures& operator=(const SystemFigures&) = delete;
  ~SystemFigures();

 private:
  void run();

  std::chrono::milliseconds interval_;
  Report report_;
  std::unique_ptr<SystemReader> reader_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
