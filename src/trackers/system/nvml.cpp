#include "trackers/system/nvml.h"

#include <dlfcn.h>

#include <cstdint>
#include <utility>

namespace accelerate::detail {

namespace {

constexpr double kMB = 1e6;

// As in nvml.h, whose interface is stable; 0 is success.
struct NvmlMemory {
  unsigned long long total = 0, free = 0, used = 0;
};
struct NvmlUtilization {
  unsigned int gpu = 0, memory = 0;
};
using NvmlDevice = void*;

template <class Function>
bool find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

struct Nvml::Library {
  void* handle = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned int*) = nullptr;
  int (*device)(unsigned int, NvmlDevice*) = nullptr;
  int (*memory)(NvmlDevice, NvmlMemory*) = nullptr;
  int (*utilization)(NvmlDevice, NvmlUtilization*) = nullptr;
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
  const bool has_all = find(nvml.handle, "nvmlInit_v2", nvml.init) &&
      find(nvml.handle, "nvmlShutdown", nvml.shutdown) &&
      find(nvml.handle, "nvmlDeviceGetCount_v2", nvml.count) &&
      find(nvml.handle, "nvmlDeviceGetHandleByIndex_v2", nvml.device) &&
      find(nvml.handle, "nvmlDeviceGetMemoryInfo", nvml.memory) &&
      find(nvml.handle, "nvmlDeviceGetUtilizationRates", nvml.utilization);
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
    NvmlDevice device = nullptr;
    if (library_->device(i, &device) != 0) continue;
    NvmlMemory memory;
    if (library_->memory(device, &memory) == 0)
      all[i].memory_mb = static_cast<double>(memory.used) / kMB;
    NvmlUtilization utilization;
    if (library_->utilization(device, &utilization) == 0)
      all[i].utilization_percent = utilization.gpu;
  }
  return all;
}

}  // namespace accelerate::detail
