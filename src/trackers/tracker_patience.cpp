#include "trackers/tracker_patience.h"

#include <algorithm>

namespace accelerate::detail {

void TrackerPatience::end_by(Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  end_ = end;
  changed_.notify_all();
}

bool TrackerPatience::is_over() const {
  const std::lock_guard lock(mutex_);
  return Clock::now() >= end_;
}

bool TrackerPatience::pause(Clock::duration time) const {
  const Clock::time_point wanted = Clock::now() + time;
  std::unique_lock lock(mutex_);
  while (Clock::now() < std::min(wanted, end_))
    changed_.wait_until(lock, std::min(wanted, end_));
  return Clock::now() < end_;
}

}  // namespace accelerate::detail
