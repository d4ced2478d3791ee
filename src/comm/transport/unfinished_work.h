#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Work that may no longer be waited for, and the memory it uses. The work is
/// destroyed first.
struct UnfinishedWork {
  at::Tensor tensor;
  Work work;
};

/// Keeps such work while the transport may use its memory: until the transport
/// reports it complete, or until the group ends.
class UnfinishedWorks {
 public:
  void keep(std::vector<UnfinishedWork> works) {
    const std::lock_guard lock(mutex_);
    std::erase_if(works_, [](const UnfinishedWork& each) {
      return each.work->isCompleted();
    });
    for (UnfinishedWork& each : works) works_.push_back(std::move(each));
  }
  [[nodiscard]] std::size_t count() const {
    const std::lock_guard lock(mutex_);
    return works_.size();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<UnfinishedWork> works_;
};

}  // namespace accelerate::detail
