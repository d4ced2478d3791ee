#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include <accelerate/profiler.h>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

namespace {

// Events of a thread that nest, in the order of their begin, an outer one first.
using ThreadEvents = std::vector<std::size_t>;

std::map<std::uint64_t, ThreadEvents> events_by_thread(
    const std::vector<RecordedEvent>& events) {
  std::map<std::uint64_t, ThreadEvents> threads;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (!events[i].is_async && events[i].kind != EventKind::step)
      threads[events[i].thread].push_back(i);
  }
  for (auto& [thread, found] : threads) {
    std::ranges::sort(found, [&](std::size_t a, std::size_t b) {
      // The later record of two with the same times is the outer one.
      return std::tuple(events[a].begin_ns, -events[a].end_ns, b) <
          std::tuple(events[b].begin_ns, -events[b].end_ns, a);
    });
  }
  return threads;
}

// The clocks of device and host agree within a few microseconds, so the middle
// of a launch is safest.
std::int64_t launch_time(const DeviceEvent& event) {
  return event.launch_begin_ns +
      (event.launch_end_ns - event.launch_begin_ns) / 2;
}

bool was_launched_by(const DeviceEvent& event, const NativeThread& thread) {
  return event.launch_thread == thread.pthread ||
      event.launch_thread == thread.system;
}

// Calls found(launch, event) with the innermost event of the thread around each
// launch, EventNode::kNone if there is none.
template <class Found>
void for_each_launch(
    const RecordedCycle& cycle,
    const ThreadEvents& thread,
    const std::vector<std::size_t>& launches,
    Found&& found) {
  std::vector<std::size_t> open;
  auto next = thread.begin();
  for (const std::size_t launch : launches) {
    const std::int64_t time = launch_time(cycle.device_events[launch]);
    for (; next != thread.end() && cycle.events[*next].begin_ns <= time;
         ++next) {
      while (!open.empty() &&
             cycle.events[open.back()].end_ns <= cycle.events[*next].begin_ns) {
        open.pop_back();
      }
      open.push_back(*next);
    }
    while (!open.empty() && cycle.events[open.back()].end_ns < time)
      open.pop_back();
    found(launch, open.empty() ? EventNode::kNone : open.back());
  }
}

void find_launchers(RecordedCycle& cycle) {
  std::vector<std::size_t> launches;
  for (std::size_t i = 0; i < cycle.device_events.size(); ++i) {
    if (cycle.device_events[i].launch_begin_ns != 0) launches.push_back(i);
  }
  std::ranges::sort(launches, [&](auto a, auto b) {
    return launch_time(cycle.device_events[a]) <
        launch_time(cycle.device_events[b]);
  });
  std::vector<bool> is_known(cycle.device_events.size());
  for (const auto& [number, thread] : events_by_thread(cycle.events)) {
    const NativeThread native = cycle.events[thread.front()].native;
    for_each_launch(
        cycle, thread, launches, [&](std::size_t launch, std::size_t around) {
          DeviceEvent& event = cycle.device_events[launch];
          if (was_launched_by(event, native)) {
            is_known[launch] = true;
            event.launcher = around;
            return;
          }
          if (is_known[launch] || around == EventNode::kNone) return;
          // For a thread to which LibTorch gives another name, takes what began
          // last on any thread, since the others wait for it.
          if (event.launcher == EventNode::kNone ||
              cycle.events[event.launcher].begin_ns <
                  cycle.events[around].begin_ns) {
            event.launcher = around;
          }
        });
  }
}

// The part to which a moment of a device is attributed: the first of these that
// applies.
enum Claim : std::size_t {
  kComputing,
  kCommunicating,
  kCopying,
  kQueued,
  kForRanks,
  kForData,
  kLaunching,
  kNothing,
  kNumClaims,
};

// Claims to parts of a span of time.
class Claims {
 public:
  Claims(std::int64_t begin, std::int64_t end) : begin_(begin), end_(end) {
    add(kNothing, begin, end);
  }

  void add(Claim claim, std::int64_t begin, std::int64_t end) {
    begin = std::max(begin, begin_);
    end = std::min(end, end_);
    if (begin >= end) return;
    changes_.push_back({begin, claim, 1});
    changes_.push_back({end, claim, -1});
  }

  // Calls each(claim, span, open) for parts of the time, with the number of
  // claims of each kind to it.
  template <class Each>
  void settle(Each&& each) {
    std::ranges::sort(
        changes_, [](auto& a, auto& b) { return a.time < b.time; });
    std::array<int, kNumClaims> open{};
    std::int64_t last = begin_;
    for (const Change& change : changes_) {
      if (change.time > last) {
        const auto first =
            std::ranges::find_if(open, [](int count) { return count > 0; });
        each(
            static_cast<Claim>(first - open.begin()), change.time - last, open);
        last = change.time;
      }
      open[change.claim] += change.by;
    }
  }

 private:
  struct Change {
    std::int64_t time;
    Claim claim;
    int by;
  };

  std::int64_t begin_, end_;
  std::vector<Change> changes_;
};

Claim claim_of(DeviceWork work) {
  switch (work) {
    case DeviceWork::kernel:
      return kComputing;
    case DeviceWork::communication:
      return kCommunicating;
    case DeviceWork::copy:
      break;
  }
  return kCopying;
}

Claim claim_of(const RecordedEvent& event) {
  if (event.kind == EventKind::op) return kLaunching;
  if (event.kind != EventKind::part) return kNothing;
  switch (event.part) {
    case StepPart::data:
      return kForData;
    case StepPart::communication:
      return kForRanks;
    case StepPart::forward:
    case StepPart::backward:
    case StepPart::optimizer:
      return kLaunching;
    case StepPart::checkpoint:
      break;
  }
  return kNothing;
}

std::int64_t DeviceTimes::*field_of(Claim claim) {
  switch (claim) {
    case kComputing:
      return &DeviceTimes::compute_ns;
    case kCommunicating:
      return &DeviceTimes::communication_ns;
    case kCopying:
      return &DeviceTimes::copy_ns;
    case kQueued:
      return &DeviceTimes::queued_ns;
    case kForRanks:
      return &DeviceTimes::ranks_ns;
    case kForData:
      return &DeviceTimes::data_ns;
    case kLaunching:
      return &DeviceTimes::launch_ns;
    default:
      return &DeviceTimes::idle_ns;
  }
}

DeviceTimes times_of_device(const RecordedCycle& cycle, std::int64_t device) {
  std::int64_t end = cycle.end_ns;
  for (const DeviceEvent& event : cycle.device_events) {
    if (event.device == device) end = std::max(end, event.end_ns);
  }
  Claims claims(cycle.begin_ns, end);
  for (const DeviceEvent& event : cycle.device_events) {
    if (event.launch_begin_ns != 0)
      claims.add(kLaunching, event.launch_begin_ns, event.launch_end_ns);
    if (event.device != device) continue;
    claims.add(claim_of(event.work), event.begin_ns, event.end_ns);
    if (event.launch_begin_ns != 0)
      claims.add(kQueued, event.launch_end_ns, event.begin_ns);
  }
  for (const RecordedEvent& event : cycle.events) {
    if (!event.is_async)
      claims.add(claim_of(event), event.begin_ns, event.end_ns);
  }
  DeviceTimes times{
      .rank = cycle.rank,
      .device = device,
      .num_steps = cycle.num_steps,
      .total_ns = end - cycle.begin_ns};
  claims.settle([&](Claim claim, std::int64_t span, const auto& open) {
    times.*field_of(claim) += span;
    if (claim != kComputing) return;
    if (open[kCommunicating] > 0) times.hidden_communication_ns += span;
    if (open[kCopying] > 0) times.hidden_copy_ns += span;
  });
  return times;
}

}  // namespace

void attribute_device_time(RecordedCycle& cycle) {
  find_launchers(cycle);
  for (const DeviceEvent& event : cycle.device_events) {
    if (event.launcher == EventNode::kNone) continue;
    const std::int64_t spent = event.end_ns - event.begin_ns;
    cycle.nodes[event.launcher].self_device_ns += spent;
    for (std::size_t i = event.launcher; i != EventNode::kNone;
         i = cycle.nodes[i].parent) {
      cycle.nodes[i].device_ns += spent;
    }
  }
}

}  // namespace accelerate::detail

namespace accelerate {

std::vector<DeviceTimes> ProfileResults::device_times() const {
  std::map<std::int64_t, DeviceTimes> rows;
  for (const detail::DeviceEvent& event : cycle_->device_events) {
    if (!rows.contains(event.device))
      rows[event.device] = detail::times_of_device(*cycle_, event.device);
  }
  std::vector<DeviceTimes> times;
  for (const auto& [device, row] : rows) times.push_back(row);
  return times;
}

std::vector<KernelAverage> ProfileResults::kernel_averages() const {
  std::map<std::tuple<std::int64_t, DeviceWork, std::string>, KernelAverage>
      found;
  for (const detail::DeviceEvent& event : cycle_->device_events) {
    KernelAverage& row =
        found[std::tuple(event.device, event.work, event.name)];
    row.name = event.name;
    row.work = event.work;
    row.device = event.device;
    ++row.count;
    row.time_total_us +=
        static_cast<double>(event.end_ns - event.begin_ns) / 1000;
  }
  std::vector<KernelAverage> rows;
  for (auto& [key, row] : found) rows.push_back(std::move(row));
  std::ranges::stable_sort(rows, std::greater(), &KernelAverage::time_total_us);
  return rows;
}

}  // namespace accelerate
