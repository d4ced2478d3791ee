#include "comm/transport/shared_memory/progress/operation_queue.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/text/text.h"
#include "comm/transport/disagreement.h"
#include "comm/transport/shared_memory/operations/failure.h"

namespace accelerate::detail {

namespace {

std::string describe_late(
    const Operation& operation,
    const std::vector<int>& awaited,
    const Peers& peers) {
  std::vector<std::string> names;
  for (const int rank : awaited) names.push_back(peers.name_of(rank));
  return format(
      "{}{} timed out waiting for {} {}",
      kSharedMemoryMark,
      operation.describe(),
      names.size() == 1 ? "rank" : "ranks",
      join(names, ", "));
}

}  // namespace

void OperationQueue::check() const {
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void OperationQueue::post(const std::shared_ptr<Operation>& operation) {
  inbox_.push_back(operation);
  has_inbox_.store(true);
}

void OperationQueue::request_end(const std::string& reason) {
  ending_ = reason;
  is_ending_.store(true);
}

void OperationQueue::listen(
    Operation& operation,
    std::function<void()> listener) {
  operation.listener_ = std::move(listener);
  num_listeners_.fetch_add(1);
}

void OperationQueue::add(const std::shared_ptr<Operation>& operation) {
  if (operation->is_message()) {
    mailbox_.post(std::static_pointer_cast<Message>(operation));
  } else {
    collectives_.push_back(operation);
  }
}

bool OperationQueue::advance() {
  if (has_failed_.load()) return false;
  bool has_moved = false;
  try {
    if (has_inbox_.load()) take_inbox();
    while (!collectives_.empty()) {
      Operation& first = *collectives_.front();
      if (first.advance(fabric_)) has_moved = true;
      if (!first.is_complete()) break;
      finished_.push_back(std::move(collectives_.front()));
      collectives_.pop_front();
    }
    if (mailbox_.advance(fabric_, finished_)) has_moved = true;
    if (!finished_.empty()) {
      const auto finished = std::exchange(finished_, {});
      finish(finished);
    }
  } catch (const DisagreementError& error) {
    fail(
        kSharedMemoryMark +
        describe_disagreement(
            {peers_.name_of(fabric_.rank()), error.own_call},
            {peers_.name_of(error.rank), error.other_call}));
    return true;
  } catch (const std::exception& error) {
    // Out of memory, for example. The driving thread continues, so that no
    // thread waits forever.
    fail(format("{}{}", kSharedMemoryMark, error.what()));
    return true;
  }
  return has_moved;
}

void OperationQueue::take_inbox() {
  const std::lock_guard lock(monitor_.mutex);
  const auto posted = std::exchange(inbox_, {});
  has_inbox_.store(false);
  for (const auto& operation : posted) add(operation);
}

void OperationQueue::finish(const Operations& operations) {
  std::vector<std::function<void()>> listeners;
  {
    const std::lock_guard lock(monitor_.mutex);
    for (const auto& operation : operations) {
      operation->state_.store(
          operation->failure_.empty() ? Operation::kSucceeded
                                      : Operation::kFailed);
      if (operation->listener_) {
        listeners.push_back(std::exchange(operation->listener_, {}));
        num_listeners_.fetch_sub(1);
      }
    }
    if (monitor_.num_waiting.load() > 0) monitor_.changed.notify_all();
  }
  // The waiting thread may be asleep while another one drives.
  if (fabric_.own_page().is_asleep.load() != 0) fabric_.ring(fabric_.rank());
  for (const auto& listener : listeners) listener();
}

void OperationQueue::take_ending() {
  if (!is_ending_.load()) return;
  std::string reason;
  {
    const std::lock_guard lock(monitor_.mutex);
    is_ending_.store(false);
    reason = ending_;
  }
  fail(reason);
}

void OperationQueue::fail(const std::string& reason) {
  Operations failed;
  {
    const std::lock_guard lock(monitor_.mutex);
    if (failure_.empty()) failure_ = reason;
    has_failed_.store(true);
    failed = mailbox_.take_pending();
    failed.insert(failed.end(), collectives_.begin(), collectives_.end());
    failed.insert(failed.end(), inbox_.begin(), inbox_.end());
    for (const auto& operation : failed) operation->failure_ = failure_;
    // These operations had already completed.
    failed.insert(failed.end(), finished_.begin(), finished_.end());
    collectives_.clear();
    inbox_.clear();
    finished_.clear();
    has_inbox_.store(false);
    RankPage& page = fabric_.own_page();
    if (page.state.load() != PageState::closed) {
      const std::size_t length =
          std::min(failure_.size(), page.last_output.size() - 1);
      std::memcpy(page.last_output.data(), failure_.data(), length);
      page.state.store(PageState::closed);
    }
  }
  fabric_.ring_all();
  finish(failed);
}

void OperationQueue::check_peers() {
  const auto now = Clock::now();
  if (now - last_check_ < kPeerCheckInterval && !Peers::have_left(fabric_))
    return;
  last_check_ = now;
  if (has_failed_.load()) return;
  const std::vector<int> gone = peers_.find_gone(fabric_);
  // Data that they wrote before they left still counts.
  if (!gone.empty() && advance()) return;
  Operations pending = mailbox_.pending();
  if (!collectives_.empty()) pending.push_back(collectives_.front());
  for (const auto& operation : pending) {
    std::vector<int> awaited;
    operation->list_awaited(fabric_, awaited);
    for (const int rank : awaited) {
      if (std::ranges::find(gone, rank) != gone.end())
        return fail(peers_.describe_gone(fabric_, rank));
    }
    if (operation->is_late(now))
      return fail(describe_late(*operation, awaited, peers_));
  }
}

Attention OperationQueue::attention() const {
  if (!collectives_.empty() || num_listeners_.load() > 0)
    return Attention::everything;
  return mailbox_.attention();
}

bool OperationQueue::is_idle() const {
  return collectives_.empty() && mailbox_.is_idle() && !has_inbox_.load();
}

}  // namespace accelerate::detail
