// How a connection ends: ranks that are gone or late, failures, close().
#include "comm/transport/shared_memory/waiting/progress_engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text/text.h"
#include "comm/transport/disagreement.h"
#include "comm/transport/shared_memory/waiting/failure.h"

namespace accelerate::detail {

namespace {

std::string joined(const std::vector<std::string>& names) {
  return format(
      "{} {}", names.size() == 1 ? "rank" : "ranks", join(names, ", "));
}

}  // namespace

void ProgressEngine::check_peers_at_times() {
  const auto now = Clock::now();
  if (now - last_check_ < kLookInterval && !Peers::have_left(fabric_)) return;
  last_check_ = now;
  check_peers();
}

void ProgressEngine::check_peers() {
  if (has_failed_.load()) return;
  const std::vector<int> gone = peers_.find_gone(fabric_);
  // What they did before they left still counts.
  if (!gone.empty() && advance_all()) return;
  std::vector<std::shared_ptr<Operation>> pending = mailbox_.pending();
  if (!collectives_.empty()) pending.push_back(collectives_.front());
  const auto now = Clock::now();
  for (const auto& operation : pending) {
    std::vector<int> awaited;
    operation->list_awaited(fabric_, awaited);
    for (const int rank : awaited) {
      if (std::find(gone.begin(), gone.end(), rank) != gone.end())
        return fail(peers_.describe_gone(fabric_, rank));
    }
    if (operation->is_late(now))
      return fail(describe_late(*operation, awaited));
  }
}

std::string ProgressEngine::describe_late(
    const Operation& operation,
    const std::vector<int>& awaited) const {
  std::vector<std::string> names;
  for (const int rank : awaited) names.push_back(peers_.name_of(rank));
  return format(
      "{}{} timed out waiting for {}",
      kSharedMemoryMark,
      operation.describe(),
      joined(names));
}

std::string ProgressEngine::describe_disagreement(
    const DisagreementError& error) const {
  return kSharedMemoryMark +
      detail::describe_disagreement(
             {peers_.name_of(rank()), error.own_call},
             {peers_.name_of(error.rank), error.other_call});
}

// Called by the driving thread, or while none drives.
void ProgressEngine::fail(const std::string& reason) {
  std::vector<std::shared_ptr<Operation>> failed;
  {
    const std::lock_guard lock(mutex_);
    if (failure_.empty()) failure_ = reason;
    has_failed_.store(true);
    failed = mailbox_.take_pending();
    failed.insert(failed.end(), collectives_.begin(), collectives_.end());
    failed.insert(failed.end(), inbox_.begin(), inbox_.end());
    for (const auto& operation : failed) operation->failure_ = failure_;
    // These had already completed.
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
  ring_all();
  finish(failed);
}

void ProgressEngine::ring_all() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    fabric_.ring(peer);
    fabric_.ring_in_background(peer);
  }
}

void ProgressEngine::end(const std::string& reason) {
  std::unique_lock lock(mutex_);
  if (is_closed_ || !failure_.empty()) return;
  ending_ = reason;
  is_ending_.store(true);
  if (is_driven_) return;
  is_driven_ = true;
  stop_driving(lock);
}

// Called by the driving thread.
void ProgressEngine::take_ending() {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    is_ending_.store(false);
    reason = ending_;
  }
  fail(reason);
}

void ProgressEngine::close() {
  if (!is_own_process()) return;
  std::unique_lock lock(mutex_);
  if (is_closed_) return;
  is_closed_ = true;
  is_closing_.store(true);
  while (is_driven_ || has_waiter_) {
    num_waiting_.fetch_add(1);
    fabric_.ring(rank());
    changed_.wait(lock);
    num_waiting_.fetch_sub(1);
  }
  fabric_.ring_in_background(rank());
  const bool has_pending = !is_idle();
  // There is no last output unless it has failed.
  fabric_.own_page().state.store(PageState::closed);
  changed_.notify_all();
  lock.unlock();
  if (worker_.joinable()) worker_.join();
  if (has_pending)
    fail(format("{}the connection was closed", kSharedMemoryMark));
  ring_all();
}

}  // namespace accelerate::detail
