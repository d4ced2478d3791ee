#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <accelerate/detail/step_parts.h>
#include <accelerate/profiler.h>

namespace accelerate::detail {

enum class EventKind : std::uint8_t {
  op,          ///< an operator, or a node of autograd
  user_range,  ///< ProfileRange, RECORD_USER_SCOPE
  step,        ///< a step of a scheduled profile
  part,        ///< a part of a step (StepPart)
};

/// The operating system's names of a thread, of which LibTorch's profiler gives
/// either.
struct NativeThread {
  /// The lower half of the pthread_t.
  std::uint32_t pthread = 0;
  std::uint32_t system = 0;
};

NativeThread native_thread_here();

/// Times are those of profile_now().
struct RecordedEvent {
  std::string name;
  EventKind kind = EventKind::op;
  /// Set only for parts.
  StepPart part = StepPart::data;
  /// Ends on another thread or after what follows it, as communication does, so
  /// it does not nest.
  bool is_async = false;
  std::uint64_t thread = 0;
  NativeThread native = {};
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  /// Links an operator with its node of the backward; -1 if there is none.
  std::int64_t sequence = -1;
  std::uint64_t forward_thread = 0;
  std::int64_t flops = 0;
  std::string input_shapes = {};
  /// The owner of a parameter among the inputs, or the model of a forward.
  std::string module = {};
  /// Return addresses, the innermost first.
  std::vector<void*> stack = {};
};

struct RecordedMemory {
  std::uint64_t thread = 0;
  std::int64_t time_ns = 0;
  const void* address = nullptr;
  /// Negative if it was freed.
  std::int64_t bytes = 0;
  std::int64_t total_allocated = 0;
  /// Allocated, or kept by LibTorch for later.
  std::int64_t total_reserved = 0;
  /// A c10::DeviceType; 0 is the host.
  int device_type = 0;
  int device_index = -1;
};

/// The place of an event among those of its thread.
struct EventNode {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  std::size_t parent = kNone;
  /// The time without the events inside.
  std::int64_t self_ns = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t self_memory_bytes = 0;
  std::int64_t device_memory_bytes = 0;
  std::int64_t self_device_memory_bytes = 0;
  /// Time of the kernels and copies that were launched within.
  std::int64_t device_ns = 0;
  std::int64_t self_device_ns = 0;
  /// The event's own module, or that of the innermost one around it.
  std::string module = {};
};

/// A kernel or a copy.
struct DeviceEvent {
  std::string name;
  DeviceWork work = DeviceWork::kernel;
  std::int64_t device = 0;
  std::int64_t stream = 0;
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  /// The host's call that launched it, on either of NativeThread's names; no
  /// times if it is not known.
  std::uint32_t launch_thread = 0;
  std::int64_t launch_begin_ns = 0;
  std::int64_t launch_end_ns = 0;
  /// The event around that call.
  std::size_t launcher = EventNode::kNone;
};

/// The rank's clock, and its relation to other ranks' clocks.
struct ProfileClock {
  /// Added to profile_now(), gives nanoseconds since 1970.
  std::int64_t wall_base_ns = 0;
  /// How far this rank's wall clock is ahead of rank 0's, and how wrong that
  /// may be.
  std::int64_t offset_ns = 0;
  std::int64_t offset_error_ns = 0;
};

/// The records of a cycle, from its first step to its last.
struct RecordedCycle {
  std::int64_t rank = 0;
  std::int64_t world_size = 1;
  std::int64_t step_num = 0;
  std::int64_t num_steps = 0;
  ProfileClock clock = {};
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::vector<RecordedEvent> events = {};
  std::vector<RecordedMemory> memory = {};
  std::vector<DeviceEvent> device_events = {};
  /// One per event.
  std::vector<EventNode> nodes = {};
  /// Names of return addresses; addresses inside LibTorch and this library are
  /// missing.
  std::unordered_map<void*, std::string> functions = {};
};

/// Nanoseconds on a clock that does not jump.
inline std::int64_t profile_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// Finds out which event is inside which, and to which a change of memory
/// belongs: the innermost of its thread at that time.
std::vector<EventNode> nest_events(
    const std::vector<RecordedEvent>& events,
    const std::vector<RecordedMemory>& memory);

/// Finds the innermost event around each launch, and adds the device's time to
/// it and the events around it.
void attribute_device_time(RecordedCycle& cycle);

/// The functions of an event's stack, the innermost first.
std::vector<std::string> functions_of(
    const RecordedCycle& cycle,
    const RecordedEvent& event);

/// Writes the cycle in Chrome's trace format.
std::string chrome_trace_of(const RecordedCycle& cycle);

}  // namespace accelerate::detail
