#include "track/profiler/profile_session.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/group/group_impl.h"

namespace accelerate::detail {

namespace {

bool records_events(const ProfileOptions& options) {
  return !options.activities || !options.activities->empty();
}

bool is_recorded(ProfilerAction action) {
  return action == ProfilerAction::record ||
      action == ProfilerAction::record_and_save;
}

std::int64_t wall_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The shortest of several readings: the thread may be interrupted between the
// two clocks.
std::int64_t wall_base() {
  constexpr int kNumReadings = 5;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  std::int64_t base = 0;
  for (int i = 0; i < kNumReadings; ++i) {
    const std::int64_t before = profile_now();
    const std::int64_t wall = wall_now();
    const std::int64_t took = profile_now() - before;
    if (took >= shortest) continue;
    shortest = took;
    base = wall - before - took / 2;
  }
  return base;
}

ProfileClock make_clock(const World& world, bool compares) {
  ProfileClock clock{.wall_base_ns = wall_base()};
  if (!compares || world.size() == 1) return clock;
  // The number of a collective is the same on all ranks, and never repeats.
  world.group().barrier();
  const std::uint64_t number = world.group().impl()->sequence.load();
  const ClockOffset offset = measure_clock_offset(
      world.store().with_prefix(format("profile_clock/{}", number)),
      world.rank(),
      world.size(),
      [&] { return profile_now() + clock.wall_base_ns; });
  clock.offset_ns = offset.offset_ns;
  clock.offset_error_ns = offset.error_ns;
  return clock;
}

constexpr int kNumRounds = 8;

std::string key_of(const char* kind, int rank, int round) {
  return format("{}/{}/{}", kind, rank, round);
}

void answer(
    const Store& store,
    int size,
    const std::function<std::int64_t()>& now) {
  for (int rank = 1; rank < size; ++rank) {
    for (int round = 0; round < kNumRounds; ++round) {
      (void)store.get(key_of("question", rank, round));
      store.set(key_of("answer", rank, round), std::to_string(now()));
    }
  }
}

}  // namespace

ProfileSession::ProfileSession(ProfileRequest request)
    : options_(std::move(request.options)),
      world_(std::move(request.world)),
      slot_(std::move(request.slot)),
      owners_(
          std::make_shared<const ParameterOwners>(std::move(request.owners))),
      report_(std::move(request.report)),
      has_device_(request.has_device),
      steps_(std::move(request.models)) {
  check_profile(options_);
  StepListener* none = nullptr;
  if (!slot_->listener.compare_exchange_strong(none, &steps_)) {
    throw ConfigError(
        "[track] an accelerator can run only one profile at a time, but "
        "another one is running; end that first, with stop()");
  }
  try {
    clock_ = make_clock(world_, writes_trace());
    action_ = action_at(0);
    transit(ProfilerAction::none, action_);
  } catch (...) {
    slot_->listener = nullptr;
    throw;
  }
  step_begin_ns_ = profile_now();
}

ProfileSession::~ProfileSession() {
  if (operators_ != nullptr) operators_->stop();
  devices_.reset();
  if (!has_ended_) slot_->listener = nullptr;
}

ProfilerAction ProfileSession::action_at(std::int64_t step) const {
  return options_.schedule_option
      ? profiler_action(*options_.schedule_option, step)
      : ProfilerAction::record;
}

void ProfileSession::step() {
  if (has_ended_) {
    throw ConfigError(
        "[track] step() must not be called on a profile that has ended; begin "
        "another one with profile()");
  }
  close_step();
  const ProfilerAction previous = action_;
  action_ = action_at(++step_num_);
  transit(previous, action_);
  step_begin_ns_ = profile_now();
}

void ProfileSession::end() {
  if (std::exchange(has_ended_, true)) return;
  // The handler may throw, and recording must then end as well.
  struct Unlisten {
    StepSlot& slot;
    ~Unlisten() { slot.listener = nullptr; }
  } const unlisten{*slot_};
  if (operators_ != nullptr && is_recording_) close_step();
  transit(action_, std::nullopt);
}

// Adds the range of the step that ends.
void ProfileSession::close_step() {
  if (!is_recording_) return;
  if (!has_ended_) steps_.end_step();
  if (operators_ == nullptr || !options_.schedule_option) return;
  operators_->add_here(
      {.name = format("ProfilerStep#{}", step_num_),
       .kind = EventKind::step,
       .begin_ns = step_begin_ns_,
       .end_ns = profile_now()});
}

void ProfileSession::transit(
    ProfilerAction previous,
    std::optional<ProfilerAction> next) {
  using enum ProfilerAction;
  const bool was_warming_up = previous == warmup;
  if (is_recording_ && (!next || previous == record_and_save)) {
    stop_cycle();
    report_new_steps();
    call_handler();
  } else if (was_warming_up && !next) {
    // LibTorch's profiler ends a warm-up with a cycle in which nothing
    // happened.
    start_cycle();
    stop_cycle();
  }
  if (!next || *next == none || is_recording_) return;
  if (!was_warming_up) prepare_cycle();
  if (is_recorded(*next)) start_cycle();
}

bool ProfileSession::records_devices() const {
  return has_device_ && records(options_, ProfilerActivity::cuda);
}

void ProfileSession::prepare_cycle() {
  if (!records_events(options_)) return;
  if (records_devices()) {
    devices_ = DeviceRecorder::make();
    if (devices_ != nullptr) {
      devices_->prepare();
    } else {
      world_.logger().log(
          LogLevel::warning,
          "track",
          "a profile records no device, since another "
          "profile of this process does");
    }
  }
  operators_ = std::make_shared<OperatorRecorder>(options_, owners_);
  operators_->start();
}

void ProfileSession::start_cycle() {
  if (devices_ != nullptr) {
    operators_->stop();
    devices_->start(world_.device());
    operators_->start();
  }
  if (operators_ != nullptr) operators_->clear();
  is_recording_ = true;
  first_step_ = step_num_;
  steps_.start(operators_);
}

void ProfileSession::stop_cycle() {
  is_recording_ = false;
  steps_.stop();
  RecordedCycle cycle;
  if (operators_ != nullptr) {
    operators_->stop();
    cycle = operators_->take();
    operators_.reset();
  } else {
    cycle.begin_ns = cycle.end_ns = profile_now();
  }
  if (devices_ != nullptr) {
    cycle.device_events = devices_->stop(world_.device(), wall_base());
    attribute_device_time(cycle);
    devices_.reset();
  }
  cycle.rank = world_.rank();
  cycle.world_size = world_.size();
  cycle.step_num = step_num_;
  cycle.num_steps = std::max<std::int64_t>(step_num_ - first_step_, 1);
  cycle.clock = clock_;
  cycle_ = std::make_shared<const RecordedCycle>(std::move(cycle));
}

void ProfileSession::call_handler() {
  if (options_.on_trace_ready) options_.on_trace_ready(ProfileResults(cycle_));
}

void ProfileSession::write_trace() {
  if (!writes_trace()) return;
  if (cycle_ == nullptr) {
    throw ConfigError(format(
        "[track] the profile ended after {} steps, before its schedule "
        "recorded any, so there is no trace to write to {}; profile more "
        "steps, or lower wait, warmup or skip_first",
        step_num_,
        options_.output_trace_dir));
  }
  std::filesystem::create_directories(options_.output_trace_dir);
  ProfileResults(cycle_).export_chrome_trace(
      std::filesystem::path(options_.output_trace_dir) /
      format("profile_{}.json", world_.rank()));
}

StepTimes ProfileSession::step_times() const {
  StepTimes times = steps_.times();
  times.rank = world_.rank();
  return times;
}

void ProfileSession::report_new_steps() {
  const StepTimes times = step_times();
  const std::int64_t before =
      std::exchange(num_reported_steps_, times.num_steps);
  if (times.num_steps > before) report({times});
}

void ProfileSession::report(const std::vector<StepTimes>& rows) const {
  if (report_) report_(rows);
}

ClockOffset measure_clock_offset(
    const Store& store,
    int rank,
    int size,
    const std::function<std::int64_t()>& now) {
  if (size == 1) return {};
  if (rank == 0) {
    answer(store, size, now);
    return {};
  }
  ClockOffset best{.error_ns = std::numeric_limits<std::int64_t>::max()};
  for (int round = 0; round < kNumRounds; ++round) {
    const std::int64_t asked = now();
    store.set(key_of("question", rank, round), "");
    const std::int64_t answered =
        std::stoll(store.get(key_of("answer", rank, round)));
    const std::int64_t received = now();
    const std::int64_t error = (received - asked + 1) / 2;
    if (error >= best.error_ns) continue;
    best = {asked + (received - asked) / 2 - answered, error};
  }
  return best;
}

}  // namespace accelerate::detail
