#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "comm/transport/nccl/departures.h"
#include "comm/transport/nccl/nccl_library.h"
#include "comm/transport/transport.h"
#include "comm/transport/transports.h"

namespace accelerate::detail {

/// Why operations of a rank's groups ended without a result. Thread-safe.
class FirstFailure {
 public:
  /// Keeps the first one.
  void note(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!text_) text_ = reason;
  }
  [[nodiscard]] std::optional<std::string> text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<std::string> text_;
};

/// The ranks of a group as NCCL connects them, and the stream on which this
/// rank's operations run. Connects at the first operation. The functions may be
/// called by several threads, begin() by one at a time.
class NcclCommunicator {
 public:
  /// `watch_ranks`: as in TransportSettings.
  NcclCommunicator(
      std::shared_ptr<const NcclLibrary> library,
      c10::Device device,
      ConnectRequest request,
      std::function<RankIsGone()> watch_ranks,
      std::shared_ptr<FirstFailure> first_failure);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  [[nodiscard]] const NcclLibrary& library() const { return *library_; }
  [[nodiscard]] c10::Device device() const { return device_; }
  [[nodiscard]] std::chrono::milliseconds timeout() const {
    return request_.timeout;
  }
  /// The time of ConnectRequest::hang_threshold.
  [[nodiscard]] std::chrono::milliseconds hang_threshold() const {
    return request_.hang_threshold;
  }
  /// The stream on which operations run; valid after begin().
  [[nodiscard]] const c10::Stream& stream() const { return *stream_; }

  /// An operation's number in the group, from 1, and the event at its end.
  struct Begun {
    std::uint64_t number = 0;
    std::shared_ptr<c10::Event> end;
  };
  /// Issues an operation, which runs once the work that the current stream has
  /// now is done. Throws NcclError.
  Begun begin(
      const char* operation,
      const std::function<int(NcclLibrary::Communicator, void* stream)>& issue);

  /// Calls `begin_all`; NCCL starts the operations that it begins as one, at
  /// whose end all of them end. Throws NcclError.
  void together(const std::function<void()>& begin_all);
  [[nodiscard]] bool is_together() const { return joint_end_ != nullptr; }

  /// Why an operation will not end: NCCL's reason, or a rank that has gone.
  /// Nothing while all is well.
  [[nodiscard]] std::optional<std::string> failure(std::uint64_t number);
  /// Called for an operation that takes long: tells the other ranks that this
  /// one has begun it. Returns why it will not end if another rank has aborted.
  [[nodiscard]] std::optional<std::string> look_for_others(
      std::uint64_t number);
  /// Names the ranks that have not told that they have begun the operation.
  [[nodiscard]] std::string describe_late(std::uint64_t number) const;
  /// Warns that this rank waits for others that have not begun an operation, if
  /// it is the first that does.
  void warn_of_late(const std::string& operation, std::uint64_t number) const;
  /// Ends all operations, those of other ranks too. Later ones throw `reason`.
  void abort(const std::string& reason);
  /// The same, because of a failure.
  void fail(const std::string& reason);
  /// Waits for begun operations to end, unless that takes long; other ranks'
  /// operations that wait for this one then fail. No others may follow.
  void leave();
  void throw_if_failed();

 private:
  void connect();
  /// Shares the first rank's id through the store.
  NcclUniqueId agree_on_id();
  /// Why another rank has aborted, if one has.
  [[nodiscard]] std::optional<std::string> reason_of_others() const;
  /// The others that have not told it, by their places in the group.
  [[nodiscard]] std::vector<int> late_ranks(std::uint64_t number) const;
  [[nodiscard]] std::string describe(const std::vector<int>& late) const;
  /// Waits until NCCL has accepted the operation.
  void finish_call(int code, const char* operation);

  std::shared_ptr<const NcclLibrary> library_;
  c10::Device device_;
  ConnectRequest request_;
  std::function<RankIsGone()> watch_ranks_;
  std::shared_ptr<FirstFailure> first_failure_;
  std::optional<c10::Stream> stream_;
  std::optional<c10::Event> ready_;
  std::atomic<std::uint64_t> num_begun_ = 0;
  /// While together() runs: the event at the end of its operations.
  std::shared_ptr<c10::Event> joint_end_;
  /// The newest operation that the others know; used by one thread.
  std::uint64_t num_told_ = 0;
  /// Guards what follows; held for all operations of together().
  std::recursive_mutex mutex_;
  NcclLibrary::Communicator communicator_ = nullptr;
  std::optional<std::string> failure_;
  Departures departures_;
};

}  // namespace accelerate::detail
