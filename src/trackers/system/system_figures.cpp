#include "trackers/system/system_figures.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace accelerate::detail {

namespace {

constexpr double kMegabyte = 1e6;
// The values read here lie within the first bytes of a /proc file, up to this
// number.
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

constexpr double kBytesPerMB = 1e6;

template <class Function>
bool find_in_library(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
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

// Declarations from nvml.h, whose interface is stable; 0 means success.
struct Nvml::Library {
  struct Memory {
    unsigned long long total = 0, free = 0, used = 0;
  };
  struct Utilization {
    unsigned int gpu = 0, memory = 0;
  };
  using Device = void*;

  void* handle = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*device)(unsigned int, Device*) = nullptr;
  int (*memory)(Device, Memory*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  unsigned int num_devices = 0;

  ~Library() {
    if (num_devices > 0) shutdown();
    if (handle != nullptr) ::dlclose(handle);
  }
};

Nvml::Nvml(std::unique_ptr<Library> library) : library_(std::move(library)) {}
Nvml::~Nvml() = default;

std::unique_ptr<Nvml> Nvml::load() {
  auto library = std::make_unique<Library>();
  Library& nvml = *library;
  nvml.handle = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (nvml.handle == nullptr) return nullptr;
  const bool has_all =
      find_in_library(nvml.handle, "nvmlInit_v2", nvml.init) &&
      find_in_library(nvml.handle, "nvmlShutdown", nvml.shutdown) &&
      find_in_library(nvml.handle, "nvmlDeviceGetCount_v2", nvml.count) &&
      find_in_library(
          nvml.handle, "nvmlDeviceGetHandleByIndex_v2", nvml.device) &&
      find_in_library(nvml.handle, "nvmlDeviceGetMemoryInfo", nvml.memory) &&
      find_in_library(
          nvml.handle, "nvmlDeviceGetUtilizationRates", nvml.utilization);
  if (!has_all || nvml.init() != 0) return nullptr;
  if (nvml.count(&nvml.num_devices) != 0 || nvml.num_devices == 0) {
    nvml.num_devices = 0;
    nvml.shutdown();
    return nullptr;
  }
  return std::unique_ptr<Nvml>(new Nvml(std::move(library)));
}

std::vector<DeviceFigures> Nvml::devices() const {
  std::vector<DeviceFigures> all(library_->num_devices);
  for (unsigned int i = 0; i < library_->num_devices; ++i) {
    Library::Device device = nullptr;
    if (library_->device(i, &device) != 0) continue;
    Library::Memory memory;
    if (library_->memory(device, &memory) == 0)
      all[i].memory_mb = static_cast<double>(memory.used) / kBytesPerMB;
    Library::Utilization utilization;
    if (library_->utilization(device, &utilization) == 0)
      all[i].utilization_percent = utilization.gpu;
  }
  return all;
}

}  // namespace accelerate::detail
