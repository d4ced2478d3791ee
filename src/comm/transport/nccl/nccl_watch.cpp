#include "comm/transport/nccl/nccl_watch.h"

#include <exception>
#include <set>
#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {
// Bounds how long a rank waits on the device after another has gone.
constexpr std::chrono::milliseconds kInterval{20};
// How often the other ranks are looked for by the store, which has a cost.
constexpr std::chrono::milliseconds kStoreInterval{500};
}  // namespace

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void NcclWatch::add(
    const std::string& name,
    const std::shared_ptr<NcclCommunicator>& communicator,
    std::shared_ptr<NcclOperation> operation) {
  const std::lock_guard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  watched_.push_back(
      {.name = name,
       .communicator = communicator,
       .operation = std::move(operation),
       .begun = now,
       .next_look = now + kStoreInterval});
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.notify_all();
}

void NcclWatch::run() {
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    if (watched_.empty()) {
      changed_.wait(lock);
      continue;
    }
    changed_.wait_for(lock, kInterval, [this] { return is_ending_; });
    std::list<Watched> all;
    all.swap(watched_);
    lock.unlock();
    look_at(all);
    lock.lock();
    // New ones were added at the end.
    watched_.splice(watched_.begin(), all);
  }
}

std::optional<std::string> NcclWatch::failure_of(Watched& watched) {
  NcclCommunicator& communicator = *watched.communicator;
  const std::uint64_t number = watched.operation->number();
  if (auto failure = communicator.failure(number)) return failure;
  const auto now = std::chrono::steady_clock::now();
  const bool is_over = now >= watched.begun + communicator.timeout();
  if (!is_over && now < watched.next_look) return std::nullopt;
  watched.next_look = now + kStoreInterval;
  if (auto failure = communicator.look_for_others(number)) return failure;
  if (!is_over) {
    const bool is_long = communicator.hang_threshold().count() > 0 &&
        now >= watched.begun + communicator.hang_threshold();
    if (is_long && !std::exchange(watched.has_warned, true))
      communicator.warn_of_late(watched.name, number);
    return std::nullopt;
  }
  return format(
      "NCCL's {}, operation {} of the group on devices, timed out after {} ms: "
      "{}",
      watched.name,
      number,
      communicator.timeout().count(),
      communicator.describe_late(number));
}

void NcclWatch::look_at(std::list<Watched>& all) {
  // Operations of a group end in their order, so only its first is queried.
  std::set<const NcclCommunicator*> pending;
  std::erase_if(all, [&](Watched& watched) {
    NcclCommunicator& communicator = *watched.communicator;
    if (pending.contains(&communicator)) return false;
    try {
      if (watched.operation->is_done()) return true;
      const auto failure = failure_of(watched);
      if (!failure) {
        pending.insert(&communicator);
        return false;
      }
      communicator.fail(*failure);
    } catch (const std::exception& error) {
      communicator.fail(first_line_of(error));
    }
    return true;
  });
}

}  // namespace accelerate::detail
