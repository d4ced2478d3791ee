#include "track/profiler/device_activities.h"

#include <algorithm>
#include <unordered_map>

namespace accelerate::detail {

namespace {

using Kind = DeviceActivity::Kind;

DeviceWork work_of(const DeviceActivity& activity) {
  if (activity.kind == Kind::copy) return DeviceWork::copy;
  // NCCL's kernels; RCCL's have the same names.
  return activity.name.find("nccl") != std::string::npos
      ? DeviceWork::communication
      : DeviceWork::kernel;
}

}  // namespace

std::vector<DeviceEvent> device_events_of(
    const std::vector<DeviceActivity>& activities,
    std::int64_t clock_shift_ns) {
  std::unordered_map<std::uint64_t, const DeviceActivity*> launches;
  for (const DeviceActivity& activity : activities) {
    if (activity.kind == Kind::launch && activity.correlation != 0)
      launches[activity.correlation] = &activity;
  }
  std::vector<DeviceEvent> events;
  for (const DeviceActivity& activity : activities) {
    if (activity.kind == Kind::launch) continue;
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
  std::stable_sort(
      events.begin(), events.end(), [](const auto& a, const auto& b) {
        return a.begin_ns < b.begin_ns;
      });
  return events;
}

}  // namespace accelerate::detail
