#pragma once

#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Also false if a device has failed, so that completion is unknown.
inline bool is_known_to_be_complete(const Work& work) noexcept {
  try {
    return work->isCompleted();
  } catch (...) {
    return false;
  }
}

/// Keeps work that nothing waits for anymore, and with it the memory that the
/// transport may use: until the transport reports it complete, or until the
/// group ends.
class UnfinishedWorks {
 public:
  void keep(Work work) {
    const std::lock_guard lock(mutex_);
    std::erase_if(works_, is_known_to_be_complete);
    works_.push_back(std::move(work));
  }
  [[nodiscard]] std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return works_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Work> works_;
};

}  // namespace accelerate::detail
