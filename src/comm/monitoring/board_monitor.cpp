#include "comm/monitoring/board_monitor.h"

#include <algorithm>
#include <limits>

namespace accelerate::detail {

namespace {

RankPhase phase_of(StepPart part) {
  switch (part) {
    case StepPart::data:
      return RankPhase::data;
    case StepPart::forward:
      return RankPhase::forward;
    case StepPart::backward:
      return RankPhase::backward;
    case StepPart::optimizer:
      return RankPhase::optimizer;
    case StepPart::checkpoint:
      return RankPhase::checkpoint;
    case StepPart::communication:
      break;
  }
  return RankPhase::between;
}

}  // namespace

void BoardMonitor::begin(StepPart part, const void*) noexcept {
  const std::scoped_lock lock(mutex_);
  if (part == StepPart::communication) {
    if (num_waiting_++ == 0 && num_open_ > 0 && num_open_ <= kMostOpen &&
        open_[0].is_timed)
      waiting_since_ = Clock::now();
    return;
  }
  const RankPhase before = writer_->enter(phase_of(part));
  if (num_open_++ >= kMostOpen) return;
  OpenPart& open = open_[num_open_ - 1];
  open.before = before;
  // Nested parts count towards the enclosing one.
  open.is_timed = num_open_ == 1 && writer_->is_timed();
  if (!open.is_timed) return;
  open.waited_ns = waited_ns_;
  open.begin = Clock::now();
}

void BoardMonitor::end(StepPart part) noexcept {
  const std::scoped_lock lock(mutex_);
  if (part == StepPart::communication) {
    if (num_waiting_ == 0 || --num_waiting_ > 0) return;
    if (waiting_since_ == Clock::time_point{}) return;
    waited_ns_ += (Clock::now() - waiting_since_).count();
    waiting_since_ = {};
    return;
  }
  if (num_open_ == 0 || num_open_-- > kMostOpen) return;
  const OpenPart& open = open_[num_open_];
  writer_->enter(open.before);
  if (!open.is_timed) return;
  const std::int64_t ns =
      (Clock::now() - open.begin).count() - (waited_ns_ - open.waited_ns);
  writer_->note_duration(
      phase_of(part),
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(
          ns / 1000, 0, std::numeric_limits<std::uint32_t>::max())));
}

void BoardMonitor::overlapped(std::int64_t, std::int64_t exposed) noexcept {
  const std::scoped_lock lock(mutex_);
  waited_ns_ += exposed;
}

void BoardMonitor::stepped(std::int64_t num_steps) noexcept {
  writer_->set_num_steps(static_cast<std::uint64_t>(num_steps));
}

}  // namespace accelerate::detail
