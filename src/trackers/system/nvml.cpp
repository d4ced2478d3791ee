#include "trackers/system/nvml.h"

#include <dlfcn.h>

#include <cstdint>
#include <utility>

namespace accelerate::detail {

namespace {

constexpr double kBytesPerMB = 1e6;

template <class Function>
bool find_in_library(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

// As in nvml.h, whose interface is stable; 0 means success.
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
