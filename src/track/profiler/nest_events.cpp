#include <algorithm>
#include <numeric>
#include <tuple>

#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

namespace {

// Order in which events of a thread begin; an event comes after those around
// it. Events are recorded when they end, so of two that begin and end at the
// same times the one around the other was recorded later.
std::vector<std::size_t> order_of(const std::vector<RecordedEvent>& events) {
  std::vector<std::size_t> order(events.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto key = [&](std::size_t i) {
    const RecordedEvent& event = events[i];
    return std::tuple(
        event.thread,
        event.begin_ns,
        -event.end_ns,
        -static_cast<std::int64_t>(i));
  };
  std::ranges::sort(
      order, [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  return order;
}

std::vector<RecordedMemory> in_order(std::vector<RecordedMemory> memory) {
  std::ranges::stable_sort(memory, [](const auto& a, const auto& b) {
    return std::tuple(a.thread, a.time_ns) < std::tuple(b.thread, b.time_ns);
  });
  return memory;
}

// Walks through the events of all threads, keeping those that are open.
class Nesting {
 public:
  Nesting(
      const std::vector<RecordedEvent>& events,
      std::vector<EventNode>& nodes)
      : events_(events), nodes_(nodes) {}

  void open(std::size_t i) {
    const RecordedEvent& event = events_[i];
    close_before(event.thread, event.begin_ns, event.end_ns);
    if (!open_.empty()) {
      nodes_[i].parent = open_.back();
      nodes_[open_.back()].self_ns -= event.end_ns - event.begin_ns;
    }
    open_.push_back(i);
  }

  void add(const RecordedMemory& change) {
    close_before(change.thread, change.time_ns, change.time_ns);
    if (open_.empty()) return;
    EventNode& node = nodes_[open_.back()];
    (change.device_type == 0 ? node.self_memory_bytes
                             : node.self_device_memory_bytes) += change.bytes;
  }

 private:
  // Closes what does not reach to `end`, or is of another thread.
  void
  close_before(std::uint64_t thread, std::int64_t begin, std::int64_t end) {
    while (!open_.empty()) {
      const RecordedEvent& last = events_[open_.back()];
      if (last.thread == thread && begin >= last.begin_ns && end <= last.end_ns)
        return;
      open_.pop_back();
    }
  }

  const std::vector<RecordedEvent>& events_;
  std::vector<EventNode>& nodes_;
  std::vector<std::size_t> open_;
};

}  // namespace

std::vector<EventNode> nest_events(
    const std::vector<RecordedEvent>& events,
    const std::vector<RecordedMemory>& memory) {
  std::vector<EventNode> nodes(events.size());
  for (std::size_t i = 0; i < events.size(); ++i)
    nodes[i].self_ns = events[i].end_ns - events[i].begin_ns;
  const std::vector<std::size_t> order = order_of(events);
  const std::vector<RecordedMemory> changes = in_order(memory);
  Nesting nesting(events, nodes);
  auto change = changes.begin();
  for (const std::size_t i : order) {
    const RecordedEvent& event = events[i];
    if (event.is_async) continue;
    for (; change != changes.end() &&
         std::tuple(change->thread, change->time_ns) <
             std::tuple(event.thread, event.begin_ns);
         ++change) {
      nesting.add(*change);
    }
    nesting.open(i);
  }
  for (; change != changes.end(); ++change) nesting.add(*change);
  for (const std::size_t i : order) {
    EventNode& node = nodes[i];
    node.memory_bytes = node.self_memory_bytes;
    node.device_memory_bytes = node.self_device_memory_bytes;
    node.module = !events[i].module.empty() || node.parent == EventNode::kNone
        ? events[i].module
        : nodes[node.parent].module;
  }
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    const EventNode& node = nodes[*i];
    if (node.parent == EventNode::kNone) continue;
    nodes[node.parent].memory_bytes += node.memory_bytes;
    nodes[node.parent].device_memory_bytes += node.device_memory_bytes;
  }
  return nodes;
}

std::vector<std::string> functions_of(
    const RecordedCycle& cycle,
    const RecordedEvent& event) {
  std::vector<std::string> functions;
  for (void* const address : event.stack) {
    const auto found = cycle.functions.find(address);
    if (found != cycle.functions.end()) functions.push_back(found->second);
  }
  return functions;
}

}  // namespace accelerate::detail
