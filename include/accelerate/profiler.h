#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/tracker.h>

namespace accelerate {

class ProfileResults;

namespace detail {
class ProfileSession;
struct RecordedCycle;
}  // namespace detail

/// Decides which steps of a training loop a profiler records: it skips
/// `skip_first` steps, then repeats cycles of `wait` steps that it ignores,
/// `warmup` steps whose records are dropped, and `active` recorded ones. Like
/// torch.profiler.schedule.
struct ProfileSchedule {
  /// Steps of a cycle that are ignored.
  std::int64_t wait = 0;
  /// Steps that are recorded and dropped, so that the profiler's own start does
  /// not count.
  std::int64_t warmup = 0;
  /// Must be at least 1.
  std::int64_t active = 1;
  /// Number of cycles; 0: until the end.
  std::int64_t repeat = 0;
  /// Steps before the first cycle.
  std::int64_t skip_first = 0;
  /// Leaves out the `wait` steps of the first cycle.
  bool skip_first_wait = false;
};

/// What a profiler does in a step.
enum class ProfilerAction {
  /// Nothing.
  none,
  /// Records, and drops the records.
  warmup,
  /// Records.
  record,
  record_and_save,  ///< the last recorded step of a cycle
};

/// Returns a profiler's action in step number `step`, counted from 0. Records
/// nothing itself. Throws ConfigError if the schedule has a negative number or
/// no active step.
ACCELERATE_API ProfilerAction
profiler_action(const ProfileSchedule& schedule, std::int64_t step);

/// What a profiler records: operators on the host (`cpu`), or kernels on the
/// device (`cuda`).
enum class ProfilerActivity { cpu, cuda };

/// Parses "cpu" or "cuda". Throws ConfigError for another name.
ACCELERATE_API ProfilerActivity parse_profiler_activity(std::string_view name);

/// What Accelerator::profile() records, as Accelerate's ProfileKwargs spells
/// it. The five fields from `record_shapes` to `with_modules` make recorded
/// steps slower, so set them only for a question that needs them.
struct ProfileOptions {
  /// Unset: operators, and if the process has a CUDA device, also kernels and
  /// copies on it. Empty: only where the time of steps goes, which costs next
  /// to nothing. ConfigError for `cuda` without a CUDA device.
  std::optional<std::vector<ProfilerActivity>> activities = std::nullopt;
  /// Which steps are recorded. Unset: everything from beginning to end, whose
  /// records stay in memory; set it for long runs.
  std::optional<ProfileSchedule> schedule_option = std::nullopt;
  /// Called at the end of each cycle, on the thread that profiles.
  std::function<void(const ProfileResults&)> on_trace_ready = nullptr;
  /// Shapes of the operators' inputs, for
  /// KeyAveragesOptions::group_by_input_shape.
  bool record_shapes = false;
  /// Allocations and frees of tensors' memory.
  bool profile_memory = false;
  /// The program's functions that led to each operator: with file and line
  /// where the program has debug information (-g), else their names. For
  /// KeyAveragesOptions::group_by_stack_n.
  bool with_stack = false;
  /// Estimates of floating-point operations, by torch.profiler's formulas: of
  /// matrix products, 2-D convolutions, additions and multiplications.
  bool with_flops = false;
  /// The module that an operator belongs to: the owner of a parameter that it,
  /// or the operator it is part of, reads; else the prepared model in whose
  /// forward it runs.
  bool with_modules = false;
  /// Directory of the traces, `profile_<rank>.json`. With it, all ranks must
  /// begin and stop() the profile. Empty: no traces are written.
  std::string output_trace_dir = {};
};

/// All calls of an operator, or of a user range, taken together. A total
/// includes what is called from within; `self` leaves that out.
struct OperatorAverage {
  /// The operator or range, such as "aten::addmm".
  std::string name;
  /// Number of calls.
  std::int64_t count = 0;
  /// Time on the host, in microseconds.
  double cpu_time_total_us = 0;
  /// The same, without what it calls.
  double self_cpu_time_total_us = 0;
  /// Time of the kernels and copies that it launched.
  double device_time_total_us = 0;
  /// The same, without what it calls.
  double self_device_time_total_us = 0;
  /// Bytes allocated less bytes freed, with profile_memory; of the host and of
  /// devices.
  std::int64_t cpu_memory_usage = 0;
  /// cpu_memory_usage without what it calls.
  std::int64_t self_cpu_memory_usage = 0;
  /// Bytes of devices.
  std::int64_t device_memory_usage = 0;
  /// device_memory_usage without what it calls.
  std::int64_t self_device_memory_usage = 0;
  /// Estimated, with with_flops.
  std::int64_t flops = 0;
  /// The shapes that the calls have in common; only if grouped by them.
  std::string input_shapes = {};
  /// The module of the calls; only if grouped by it.
  std::string module = {};
  /// The innermost functions, one per line; only if grouped by them.
  std::string stack = {};
};

/// What calls, besides their name, must have in common to be taken together.
struct KeyAveragesOptions {
  /// Calls with inputs of other shapes are counted apart; needs record_shapes.
  bool group_by_input_shape = false;
  /// Calls of other modules are counted apart; needs with_modules.
  bool group_by_module = false;
  /// Number of the innermost functions that are compared; 0: none. Needs
  /// with_stack.
  std::int64_t group_by_stack_n = 0;
};

/// The column of OperatorAverage by which a table is sorted, largest first.
enum class OperatorOrder {
  self_cpu_time_total,       ///< time on the host, without what is called
  cpu_time_total,            ///< time on the host
  count,                     ///< number of calls
  cpu_memory_usage,          ///< bytes of the host
  self_cpu_memory_usage,     ///< bytes of the host, without what is called
  flops,                     ///< estimated operations
  name,                      ///< alphabetically
  self_device_time_total,    ///< time of the device, without what is called
  device_time_total,         ///< time of the device
  device_memory_usage,       ///< bytes of devices
  self_device_memory_usage,  ///< bytes of devices, without what is called
};

struct OperatorTableOptions {
  /// The column that decides the order of rows.
  OperatorOrder sort_by = OperatorOrder::self_cpu_time_total;
  /// Number of rows; 0: all.
  std::size_t row_limit = 100;
};

/// Formats the rows as text, with the columns that are not empty.
ACCELERATE_API std::string operator_table(
    std::vector<OperatorAverage> rows,
    const OperatorTableOptions& options = {});

/// What a device works on.
enum class DeviceWork : std::uint8_t {
  kernel,         ///< computes
  communication,  ///< a kernel that exchanges data with other ranks
  copy,           ///< a copy or memset
};

/// All runs of a kernel, or all copies of a kind, taken together.
struct KernelAverage {
  /// Name of the kernel, or the kind of copy.
  std::string name;
  /// What the device does.
  DeviceWork work = DeviceWork::kernel;
  /// Index of the device.
  std::int64_t device = 0;
  /// Number of runs.
  std::int64_t count = 0;
  /// Total time on the device, in microseconds.
  double time_total_us = 0;
};

/// Formats the rows as text, the longest first; 0: all rows.
ACCELERATE_API std::string kernel_table(
    std::vector<KernelAverage> rows,
    std::size_t row_limit = 100);

/// Where the time of a device went from the first recorded step of a cycle
/// until it had finished the last, in nanoseconds. The parts from `compute_ns`
/// to `idle_ns` add up to `total_ns`; each moment counts for the first that
/// applies, whatever runs on the device's other streams.
struct DeviceTimes {
  /// The rank that recorded.
  std::int64_t rank = 0;
  /// Index of the device.
  std::int64_t device = 0;
  /// Number of recorded steps.
  std::int64_t num_steps = 0;
  /// All of that time.
  std::int64_t total_ns = 0;
  /// A kernel computes.
  std::int64_t compute_ns = 0;
  /// Kernels exchange data with other ranks.
  std::int64_t communication_ns = 0;
  /// Copies and memsets run.
  std::int64_t copy_ns = 0;
  /// Nothing runs, but work has been launched: it starts, or waits for another
  /// stream.
  std::int64_t queued_ns = 0;
  /// Nothing runs or is queued because the host waits for other ranks.
  std::int64_t ranks_ns = 0;
  /// Nothing runs or is queued because the loop waits for the loader's next
  /// batch.
  std::int64_t data_ns = 0;
  /// Nothing runs or is queued while the host computes, steps or launches: the
  /// step is bound by its launches.
  std::int64_t launch_ns = 0;
  /// Nothing runs or is queued while the program does something else.
  std::int64_t idle_ns = 0;
  /// Communication, and copies, that ran while kernels computed; not part of
  /// `total_ns`.
  std::int64_t hidden_communication_ns = 0;
  /// The same, of copies.
  std::int64_t hidden_copy_ns = 0;

  bool operator==(const DeviceTimes&) const = default;
};

/// A row per device: the mean step in milliseconds, and the fraction spent in
/// each part.
ACCELERATE_API std::string device_times_table(
    const std::vector<DeviceTimes>& rows);

/// Where the time of a rank's recorded steps went, in nanoseconds. The parts
/// from `data_ns` to `idle_ns` add up to `total_ns`. With an accelerator, these
/// are times of the host, which runs ahead of it.
struct StepTimes {
  /// The rank that recorded.
  std::int64_t rank = 0;
  /// Number of recorded steps.
  std::int64_t num_steps = 0;
  /// All of that time.
  std::int64_t total_ns = 0;
  /// Waiting for the loader's next batch.
  std::int64_t data_ns = 0;
  /// Inside calls of prepared models.
  std::int64_t forward_ns = 0;
  /// Inside backward().
  std::int64_t backward_ns = 0;
  /// Inside step() of prepared optimizers, and clipping.
  std::int64_t optimizer_ns = 0;
  /// Waiting for other ranks, in any part of the step.
  std::int64_t communication_ns = 0;
  /// The program's own work between the library's calls.
  std::int64_t other_ns = 0;
  /// The program's thread sleeping between the library's calls.
  std::int64_t idle_ns = 0;
  /// Communication while the rank computed; not part of `total_ns`. Messages of
  /// sharded models count until the rank asks for them, so this is an upper
  /// bound.
  std::int64_t hidden_communication_ns = 0;

  bool operator==(const StepTimes&) const = default;
};

/// A row per rank: the mean step in milliseconds, and the fraction spent in
/// each part.
ACCELERATE_API std::string step_times_table(const std::vector<StepTimes>& rows);
/// The table as values, for a tracker or the journal: milliseconds per step.
ACCELERATE_API TrackedTable
step_times_values(const std::vector<StepTimes>& rows);
/// The rows as a JSON list of objects with StepTimes' fields.
ACCELERATE_API std::string step_times_json(const std::vector<StepTimes>& rows);

/// What one cycle of a profile has recorded. A cheap handle; copies refer to
/// the same records.
class ACCELERATE_API ProfileResults {
 public:
  explicit ProfileResults(std::shared_ptr<const detail::RecordedCycle> cycle);

  /// The number of the step that begins after the cycle.
  [[nodiscard]] std::int64_t step_num() const;
  /// The numbers of the recorded steps; none without a schedule.
  [[nodiscard]] std::vector<std::int64_t> steps() const;
  /// Number of recorded calls of operators and user ranges.
  [[nodiscard]] std::size_t num_events() const;
  /// One row per name, in the order of the first call.
  [[nodiscard]] std::vector<OperatorAverage> key_averages(
      const KeyAveragesOptions& options = {}) const;
  /// One row per device, kind of work and name, the longest first; none without
  /// a CUDA device.
  [[nodiscard]] std::vector<KernelAverage> kernel_averages() const;
  /// One row per device that has worked, in their order.
  [[nodiscard]] std::vector<DeviceTimes> device_times() const;
  /// Writes the events in Chrome's trace format, for chrome://tracing, Perfetto
  /// (ui.perfetto.dev) and `accelerate-cpp trace merge`.
  void export_chrome_trace(const std::filesystem::path& path) const;

 private:
  detail::KeptPtr<const detail::RecordedCycle> cycle_;
};

/// Records what one thread of a rank does, including the backward passes that
/// it starts; made by Accelerator::profile(). Must be used on the thread that
/// made it. If stop() was not called, the destructor does its work, but does
/// not wait for other ranks, and logs what stop() would throw.
class ACCELERATE_API Profile {
 public:
  explicit Profile(std::unique_ptr<detail::ProfileSession> session);
  Profile(Profile&& other) noexcept;
  Profile& operator=(Profile&&) = delete;
  ~Profile();

  /// Advances the schedule, and counts a step of step_times(). Call it at the
  /// end of each step of the loop.
  void step();
  /// Ends the recording, writes the trace if there is an output_trace_dir, and
  /// then waits for every rank. Throws ConfigError if a trace is to be written
  /// and the schedule has recorded nothing. Calling it again is a no-op.
  void stop();

  /// Number of calls of step().
  [[nodiscard]] std::int64_t step_num() const;
  /// The action of the current step.
  [[nodiscard]] ProfilerAction current_action() const;
  /// The cycle recorded last. Throws ConfigError if there is none yet.
  [[nodiscard]] ProfileResults results() const;
  /// The averages of results().
  [[nodiscard]] std::vector<OperatorAverage> key_averages(
      const KeyAveragesOptions& options = {}) const;
  /// The times of the steps recorded so far. Without calls of step(), the whole
  /// profile is one step.
  [[nodiscard]] StepTimes step_times() const;
  /// The step times of all ranks, in rank order; all ranks must call it.
  [[nodiscard]] std::vector<StepTimes> gather_step_times() const;

 private:
  detail::MovedCheck<detail::OwnedPtr<detail::ProfileSession>, "Profile">
      session_;
};

/// Names a part of the program in profiles: what happens while it lives. Costs
/// next to nothing while this thread is not profiled.
class ACCELERATE_API ProfileRange {
 public:
  explicit ProfileRange(std::string_view name);
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;
  ~ProfileRange();

 private:
  std::shared_ptr<void> range_;
};

}  // namespace accelerate
