#pragma once

#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Work that nobody may wait for any more, and the memory that it uses. The work
/// ends first.
struct UnfinishedWork {
  at::Tensor tensor;
  Work work;
};

/// Keeps such work for as long as the transport may use its memory: until it is
/// done, as far as the transport tells, else until its group ends.
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
