#include "track/profiler/step_recorder.h"

#include <algorithm>
#include <utility>

#include <ctime>

#include "track/profiler/operator_recorder.h"
#include "track/profiler/recorded_cycle.h"

namespace accelerate::detail {

namespace {

// The clock of a thread is a system call of about a microsecond, so it is read
// only in gaps that were at least this long in the previous step. The time of
// shorter ones counts as used.
constexpr std::int64_t kLongGapNs = 100'000;

std::int64_t thread_cpu_now() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::size_t index_of(StepPart part) { return static_cast<std::size_t>(part); }

const char* name_of(StepPart part) {
  switch (part) {
    case StepPart::data:
      return "next batch";
    case StepPart::forward:
      return "forward";
    case StepPart::backward:
      return "backward";
    case StepPart::optimizer:
      return "optimizer";
    case StepPart::checkpoint:
      return "checkpoint";
    case StepPart::communication:
      break;
  }
  return "waiting for ranks";
}

void add_to(StepTimes& sum, const StepTimes& step) {
  sum.num_steps += step.num_steps;
  sum.total_ns += step.total_ns;
  sum.data_ns += step.data_ns;
  sum.forward_ns += step.forward_ns;
  sum.backward_ns += step.backward_ns;
  sum.optimizer_ns += step.optimizer_ns;
  sum.communication_ns += step.communication_ns;
  sum.other_ns += step.other_ns;
  sum.idle_ns += step.idle_ns;
  sum.hidden_communication_ns += step.hidden_communication_ns;
}

}  // namespace

void StepRecorder::start(std::shared_ptr<OperatorRecorder> operators) {
  const std::scoped_lock lock(mutex_);
  operators_ = std::move(operators);
  is_running_ = true;
  step_ = {};
  parts_ns_ = {};
  num_open_ = 0;
  num_waiting_ = 0;
  num_in_flight_ = 0;
  gap_ = 0;
  was_long_ = all_gaps();
  last_ns_ = profile_now();
  begin_gap();
}

void StepRecorder::begin_gap() {
  gap_ns_ = 0;
  last_cpu_ns_.reset();
  if (was_long_[gap_]) last_cpu_ns_ = thread_cpu_now();
}

void StepRecorder::end_gap() {
  was_long_[gap_] = gap_ns_ >= kLongGapNs;
  gap_ = std::min(gap_ + 1, kMostGaps - 1);
}

void StepRecorder::count_gap(std::int64_t spent) {
  gap_ns_ += spent;
  std::int64_t used = spent;
  if (last_cpu_ns_) {
    const std::int64_t cpu = thread_cpu_now();
    used = std::clamp<std::int64_t>(cpu - *last_cpu_ns_, 0, spent);
    last_cpu_ns_ = cpu;
  }
  step_.other_ns += used;
  step_.idle_ns += spent - used;
}

void StepRecorder::settle(std::int64_t now) {
  const std::int64_t spent = now - last_ns_;
  last_ns_ = now;
  step_.total_ns += spent;
  if (num_waiting_ > 0) {
    parts_ns_[index_of(StepPart::communication)] += spent;
    return;
  }
  if (num_in_flight_ > 0) step_.hidden_communication_ns += spent;
  if (num_open_ > 0) {
    parts_ns_[index_of(open_[num_open_ - 1].part)] += spent;
    return;
  }
  count_gap(spent);
}

void StepRecorder::begin(StepPart part, const void* subject) noexcept {
  const std::int64_t now = profile_now();
  const std::scoped_lock lock(mutex_);
  if (!is_running_) return;
  if (part == StepPart::communication) {
    settle(now);
    if (is_outside()) end_gap();
    if (num_waiting_++ == 0) waiting_since_ns_ = now;
    return;
  }
  if (std::this_thread::get_id() != thread_) return;
  settle(now);
  if (is_outside()) end_gap();
  // Parts nested deeper count for the parts around them.
  if (num_open_ < kMostOpen) open_[num_open_] = {part, now, subject};
  num_open_ = std::min(num_open_ + 1, kMostOpen);
}

void StepRecorder::end(StepPart part) noexcept {
  const std::int64_t now = profile_now();
  const std::scoped_lock lock(mutex_);
  if (!is_running_) return;
  if (part == StepPart::communication) {
    // A part that began before the recording is not known.
    if (num_waiting_ == 0) return;
    settle(now);
    if (--num_waiting_ == 0) {
      if (is_outside()) begin_gap();
      if (std::this_thread::get_id() == thread_)
        add_event({part, waiting_since_ns_}, now);
    }
    return;
  }
  if (std::this_thread::get_id() != thread_ || num_open_ == 0) return;
  settle(now);
  --num_open_;
  if (is_outside()) begin_gap();
  add_event(open_[num_open_], now);
}

void StepRecorder::add_event(const OpenPart& part, std::int64_t now) noexcept {
  if (operators_ == nullptr) return;
  try {
    RecordedEvent event{
        .name = name_of(part.part),
        .kind = EventKind::part,
        .part = part.part,
        .begin_ns = part.begin_ns,
        .end_ns = now};
    const auto model = models_.find(part.subject);
    if (model != models_.end()) {
      event.name += " " + model->second;
      if (operators_->options().with_modules) event.module = model->second;
    }
    operators_->add_here(std::move(event));
  } catch (const std::bad_alloc&) {
    // A step matters more than its trace, so errors are ignored.
  }
}

void StepRecorder::change_in_flight(int change) noexcept {
  const std::int64_t now = profile_now();
  const std::scoped_lock lock(mutex_);
  if (!is_running_) return;
  settle(now);
  num_in_flight_ = std::max(num_in_flight_ + change, 0);
}

void StepRecorder::overlapped(
    std::int64_t hidden,
    std::int64_t exposed) noexcept {
  const std::int64_t now = profile_now();
  const std::scoped_lock lock(mutex_);
  if (!is_running_) return;
  settle(now);
  step_.hidden_communication_ns += hidden;
  if (num_open_ == 0) return;
  std::int64_t& part = parts_ns_[index_of(open_[num_open_ - 1].part)];
  // A step that began inside the part has less of it.
  const std::int64_t moved = std::min(exposed, part);
  part -= moved;
  parts_ns_[index_of(StepPart::communication)] += moved;
}

void StepRecorder::end_step() {
  const std::int64_t now = profile_now();
  const std::scoped_lock lock(mutex_);
  if (!is_running_) return;
  settle(now);
  step_.num_steps = 1;
  step_.data_ns = parts_ns_[index_of(StepPart::data)];
  step_.forward_ns = parts_ns_[index_of(StepPart::forward)];
  step_.backward_ns = parts_ns_[index_of(StepPart::backward)];
  step_.optimizer_ns = parts_ns_[index_of(StepPart::optimizer)];
  step_.communication_ns = parts_ns_[index_of(StepPart::communication)];
  step_.other_ns += parts_ns_[index_of(StepPart::checkpoint)];
  add_to(done_, std::exchange(step_, {}));
  parts_ns_ = {};
  if (is_outside()) end_gap();
  gap_ = 0;
  if (is_outside()) begin_gap();
}

void StepRecorder::stop() {
  bool has_steps = false;
  {
    const std::scoped_lock lock(mutex_);
    if (!is_running_) return;
    has_steps = done_.num_steps > 0;
  }
  if (!has_steps) end_step();
  const std::scoped_lock lock(mutex_);
  is_running_ = false;
  operators_ = nullptr;
}

StepTimes StepRecorder::times() const {
  const std::scoped_lock lock(mutex_);
  return done_;
}

}  // namespace accelerate::detail
