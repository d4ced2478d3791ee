#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <accelerate/detail/step_parts.h>
#include <accelerate/profiler.h>
#include <accelerate/world.h>

#include "track/profiler/device_recorder.h"
#include "track/profiler/operator_recorder.h"
#include "track/profiler/recorded_cycle.h"
#include "track/profiler/step_recorder.h"

namespace accelerate::detail {

struct ProfileRequest {
  ProfileOptions options;
  World world;
  /// The slot in which the accelerator's calls find the profile.
  std::shared_ptr<StepSlot> slot;
  /// Names of models, the subjects of forwards.
  std::unordered_map<const void*, std::string> models = {};
  ParameterOwners owners = {};
  /// Receives this rank's times when a cycle ends, and those of all ranks when
  /// they are gathered.
  std::function<void(const std::vector<StepTimes>&)> report = {};
  /// Whether there are devices to record.
  bool has_device = DeviceRecorder::has_device();
};

/// Runs a profile's schedule: decides what is recorded from one step to the
/// next, and what is done with it.
class ProfileSession {
 public:
  /// Begins with step 0. All ranks must call it.
  explicit ProfileSession(ProfileRequest request);
  ProfileSession(const ProfileSession&) = delete;
  ProfileSession& operator=(const ProfileSession&) = delete;
  ~ProfileSession();

  void step();
  /// Ends the recording; the second time, does nothing.
  void end();
  /// Writes the trace, if one is wanted and the profile has just ended. Throws
  /// ConfigError if nothing was recorded.
  void write_trace();
  [[nodiscard]] bool has_ended() const { return has_ended_; }
  [[nodiscard]] bool writes_trace() const {
    return !options_.output_trace_dir.empty();
  }

  [[nodiscard]] const World& world() const { return world_; }
  [[nodiscard]] std::int64_t step_num() const { return step_num_; }
  [[nodiscard]] ProfilerAction action() const { return action_; }
  [[nodiscard]] const std::shared_ptr<const RecordedCycle>& cycle() const {
    return cycle_;
  }
  [[nodiscard]] StepTimes step_times() const;
  void report(const std::vector<StepTimes>& rows) const;

 private:
  [[nodiscard]] ProfilerAction action_at(std::int64_t step) const;
  /// `next` is unset at the end.
  void transit(ProfilerAction previous, std::optional<ProfilerAction> next);
  [[nodiscard]] bool records_devices() const;
  void prepare_cycle();
  void start_cycle();
  void stop_cycle();
  void call_handler();
  void report_new_steps();
  void close_step();

  ProfileOptions options_;
  World world_;
  std::shared_ptr<StepSlot> slot_;
  std::shared_ptr<const ParameterOwners> owners_;
  std::function<void(const std::vector<StepTimes>&)> report_;
  ProfileClock clock_;
  const bool has_device_;
  StepRecorder steps_;
  std::shared_ptr<OperatorRecorder> operators_;
  // Set while a cycle records devices.
  std::unique_ptr<DeviceRecorder> devices_;
  std::shared_ptr<const RecordedCycle> cycle_;
  ProfilerAction action_ = ProfilerAction::none;
  std::int64_t step_num_ = 0;
  std::int64_t num_reported_steps_ = 0;
  std::int64_t step_begin_ns_ = 0;
  std::int64_t first_step_ = 0;
  bool is_recording_ = false;
  bool has_ended_ = false;
};

/// How far this rank's wall clock is ahead of rank 0's. `now` gives its
/// nanoseconds.
struct ClockOffset {
  std::int64_t offset_ns = 0;
  /// The true offset is at most this far away.
  std::int64_t error_ns = 0;
};

/// Measures it by a few questions to rank 0 through `store`, which nothing else
/// uses: the answer came between question and receipt, most precisely in the
/// shortest round trip. All ranks must call it.
ClockOffset measure_clock_offset(
    const Store& store,
    int rank,
    int size,
    const std::function<std::int64_t()>& now);

}  // namespace accelerate::detail
