#include "trackers/system/system_figures.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace accelerate::detail {

namespace {

constexpr double kMegabyte = 1e6;
// What is read here lies within this many bytes of a /proc file.
constexpr std::size_t kMostProcBytes = 1 << 18;

// Three decimals are enough for readers and journals.
double to_thousandths(double figure) {
  return std::round(figure * 1000) / 1000;
}

double megabytes(std::uint64_t bytes) {
  return to_thousandths(static_cast<double>(bytes) / kMegabyte);
}

// 0 if the sum decreased because a device was removed.
std::uint64_t since_begin(std::uint64_t now, std::uint64_t begin) {
  return now > begin ? now - begin : 0;
}

}  // namespace

SystemReader::SystemReader(
    std::filesystem::path root,
    std::unique_ptr<Nvml> nvml)
    : root_(std::move(root)),
      nvml_(std::move(nvml)),
      ticks_(cpu_ticks(read("proc/stat"))),
      disk_(disk_bytes(read("proc/diskstats"))),
      network_(network_bytes(read("proc/net/dev"))) {}

std::string SystemReader::read(const std::filesystem::path& path) const {
  const int file = ::open((root_ / path).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  std::string text;
  std::array<char, 1 << 14> chunk;
  while (text.size() < kMostProcBytes) {
    const auto got = ::read(file, chunk.data(), chunk.size());
    if (got <= 0) break;
    text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  ::close(file);
  return text;
}

std::optional<std::uint64_t> SystemReader::container_bytes(
    std::uint64_t machine_total) const {
  const std::string own = read("proc/self/cgroup");
  const auto path = cgroup_path(own);
  if (!path) return std::nullopt;
  const auto group = std::filesystem::path("sys/fs/cgroup") / *path;
  const auto limit = lone_number(read(group / "memory.max"));
  if (!limit || *limit >= machine_total) return std::nullopt;
  const auto used = lone_number(read(group / "memory.current"));
  if (!used) return std::nullopt;
  // Cached files can be evicted for programs, as in MemAvailable.
  return since_begin(
      *used,
      keyed_number(read(group / "memory.stat"), "inactive_file").value_or(0));
}

std::optional<std::uint64_t> SystemReader::machine_bytes() const {
  const std::string text = read("proc/meminfo");
  const auto total = meminfo_bytes(text, "MemTotal");
  if (!total) return std::nullopt;
  if (const auto bytes = container_bytes(*total)) return bytes;
  const auto available = meminfo_bytes(text, "MemAvailable");
  if (!available) return std::nullopt;
  return since_begin(*total, *available);
}

std::optional<double> SystemReader::process_mb() const {
  const auto pages = resident_pages(read("proc/self/statm"));
  if (!pages) return std::nullopt;
  return to_thousandths(
      static_cast<double>(*pages) *
      static_cast<double>(::sysconf(_SC_PAGESIZE)) / kMegabyte);
}

std::vector<JournalScalars::Scalar> SystemReader::figures() {
  std::vector<JournalScalars::Scalar> figures;
  const auto ticks = cpu_ticks(read("proc/stat"));
  if (ticks && ticks_ && ticks->all > ticks_->all) {
    const double share =
        static_cast<double>(since_begin(ticks->busy, ticks_->busy)) /
        static_cast<double>(ticks->all - ticks_->all);
    figures.push_back(
        {"cpu_percent", to_thousandths(100 * std::min(share, 1.0))});
  }
  ticks_ = ticks;
  if (const auto mb = process_mb()) figures.push_back({"process_mb", *mb});
  if (const auto bytes = machine_bytes())
    figures.push_back({"machine_mb", megabytes(*bytes)});
  const ByteCounts disk = disk_bytes(read("proc/diskstats"));
  const ByteCounts network = network_bytes(read("proc/net/dev"));
  figures.push_back(
      {"disk_read_mb", megabytes(since_begin(disk.in, disk_.in))});
  figures.push_back(
      {"disk_write_mb", megabytes(since_begin(disk.out, disk_.out))});
  figures.push_back(
      {"network_in_mb", megabytes(since_begin(network.in, network_.in))});
  figures.push_back(
      {"network_out_mb", megabytes(since_begin(network.out, network_.out))});
  if (!nvml_) return figures;
  std::size_t number = 0;
  for (const DeviceFigures& device : nvml_->devices()) {
    const std::string name = "device." + std::to_string(number++);
    figures.push_back({name + ".memory_mb", to_thousandths(device.memory_mb)});
    figures.push_back(
        {name + ".utilization_percent",
         static_cast<double>(device.utilization_percent)});
  }
  return figures;
}

}  // namespace accelerate::detail
