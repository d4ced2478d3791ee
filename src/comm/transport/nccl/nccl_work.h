#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>

#include "comm/transport/nccl/nccl_communicator.h"
#include "comm/transport/transport.h"

namespace accelerate::detail {

/// An operation on NCCL's stream. The memory that it uses is kept until the
/// stream that began it waits for it, in whose order the allocator may use the
/// memory again, or until the operation has ended.
class NcclOperation {
 public:
  /// Begun by the current stream.
  NcclOperation(
      std::shared_ptr<NcclCommunicator> communicator,
      NcclCommunicator::Begun begun,
      std::vector<at::Tensor> memory);

  /// Its number in the group, from 1.
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Whether the device is done. Any thread may ask.
  [[nodiscard]] bool is_done() const { return end_->query(); }
  /// Makes the current stream of the device wait. Throws NcclError if the group
  /// has failed.
  void join_current_stream();
  /// Also makes this thread wait.
  void synchronize();
  /// Returns a future of `results`, which is complete for the host; streams that
  /// use it wait.
  c10::intrusive_ptr<c10::ivalue::Future> future_of(
      const std::vector<at::Tensor>& results);

 private:
  std::shared_ptr<NcclCommunicator> communicator_;
  c10::Stream begun_by_;
  std::uint64_t number_;
  std::shared_ptr<c10::Event> end_;
  std::mutex mutex_;
  std::vector<at::Tensor> memory_;
};

/// Returns the operation's work, with `results`. wait() makes the current
/// stream wait, and also the host if `waits_on_host`.
Work work_of(
    std::shared_ptr<NcclOperation> operation,
    std::vector<at::Tensor> results,
    bool waits_on_host = false);

}  // namespace accelerate::detail
