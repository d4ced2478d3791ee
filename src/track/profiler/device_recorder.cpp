#include "track/profiler/device_recorder.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

namespace libtorch = torch::autograd::profiler;

// The profiler belongs to the process; a second one would end the first.
std::atomic<bool> is_taken{false};

const std::set<libtorch::ActivityType> kDeviceActivities{
    libtorch::ActivityType::CUDA};

libtorch::ProfilerConfig device_config() {
  return libtorch::ProfilerConfig(libtorch::ProfilerState::KINETO);
}

const void* profiler_of_this_thread() {
  return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE);
}

void synchronize_device(c10::Device device) {
  if (!device.is_cpu() && DeviceRecorder::has_device())
    at::accelerator::synchronizeDevice(device.index());
}

// Unset for events that are neither work of a device nor its launch.
std::optional<DeviceActivity::Kind> kind_of(
    const libtorch::KinetoEvent& event) {
  switch (static_cast<libkineto::ActivityType>(event.activityType())) {
    case libkineto::ActivityType::CONCURRENT_KERNEL:
      return DeviceActivity::Kind::kernel;
    case libkineto::ActivityType::GPU_MEMCPY:
    case libkineto::ActivityType::GPU_MEMSET:
      return DeviceActivity::Kind::copy;
    case libkineto::ActivityType::CUDA_RUNTIME:
    case libkineto::ActivityType::CUDA_DRIVER:
      return DeviceActivity::Kind::launch;
    default:
      return std::nullopt;
  }
}

template <class Call>
void begin_profiler(Call&& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    throw ConfigError(format(
        "[track] a profile of device kernels could not begin: {}; activities "
        "{{cpu}} records operators only",
        error.what_without_backtrace()));
  }
}

using ActivityKind = DeviceActivity::Kind;

DeviceWork work_of(const DeviceActivity& activity) {
  if (activity.kind == ActivityKind::copy) return DeviceWork::copy;
  // NCCL's kernels; RCCL's have the same names.
  return activity.name.find("nccl") != std::string::npos
      ? DeviceWork::communication
      : DeviceWork::kernel;
}

}  // namespace

bool DeviceRecorder::has_device() {
  return at::detail::getCUDAHooks().hasCUDA();
}

std::unique_ptr<DeviceRecorder> DeviceRecorder::make() {
  if (is_taken.exchange(true)) return nullptr;
  return std::unique_ptr<DeviceRecorder>(new DeviceRecorder());
}

DeviceRecorder::~DeviceRecorder() {
  try {
    if (profiler_ != nullptr) (void)stop(at::kCPU, 0);
  } catch (const std::exception&) {
    // The records are not needed.
  }
  is_taken = false;
}

void DeviceRecorder::prepare() {
  begin_profiler(
      [] { libtorch::prepareProfiler(device_config(), kDeviceActivities); });
}

void DeviceRecorder::start(c10::Device device) {
  synchronize_device(device);
  begin_profiler(
      [] { libtorch::enableProfiler(device_config(), kDeviceActivities); });
  profiler_ = profiler_of_this_thread();
}

std::vector<DeviceEvent> DeviceRecorder::stop(
    c10::Device device,
    std::int64_t wall_base_ns) {
  const void* const profiler = std::exchange(profiler_, nullptr);
  // LibTorch ends whatever profiler is there, and mistakes it for its own.
  if (profiler == nullptr || profiler != profiler_of_this_thread()) return {};
  synchronize_device(device);
  const auto result = libtorch::disableProfiler();
  std::vector<DeviceActivity> activities;
  for (const libtorch::KinetoEvent& event : result->events()) {
    const auto kind = kind_of(event);
    if (!kind) continue;
    activities.push_back(
        {.kind = *kind,
         .name = event.name(),
         .device = event.deviceIndex(),
         .resource = event.deviceResourceId(),
         .begin_ns = static_cast<std::int64_t>(event.startNs()),
         .end_ns = static_cast<std::int64_t>(event.endNs()),
         .correlation = event.correlationId()});
  }
  return device_events_of(activities, wall_base_ns);
}

std::vector<DeviceEvent> device_events_of(
    const std::vector<DeviceActivity>& activities,
    std::int64_t clock_shift_ns) {
  std::unordered_map<std::uint64_t, const DeviceActivity*> launches;
  for (const DeviceActivity& activity : activities) {
    if (activity.kind == ActivityKind::launch && activity.correlation != 0)
      launches[activity.correlation] = &activity;
  }
  std::vector<DeviceEvent> events;
  for (const DeviceActivity& activity : activities) {
    if (activity.kind == ActivityKind::launch) continue;
    DeviceEvent& event = events.emplace_back(DeviceEvent{
        .name = activity.name,
        .work = work_of(activity),
        .device = activity.device,
        .stream = activity.resource,
        .begin_ns = activity.begin_ns - clock_shift_ns,
        .end_ns = activity.end_ns - clock_shift_ns});
    const auto launch = launches.find(activity.correlation);
    if (launch == launches.end()) continue;
    event.launch_thread = static_cast<std::uint32_t>(launch->second->resource);
    event.launch_begin_ns = launch->second->begin_ns - clock_shift_ns;
    event.launch_end_ns = launch->second->end_ns - clock_shift_ns;
  }
  std::ranges::stable_sort(events, [](const auto& a, const auto& b) {
    return a.begin_ns < b.begin_ns;
  });
  return events;
}

}  // namespace accelerate::detail
