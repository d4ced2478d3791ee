#include "comm/transport/shared_memory/waiting/progress_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/text/text.h"
#include "comm/transport/disagreement.h"
#include "comm/transport/shared_memory/waiting/failure.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;

// How long a sleeper does not look whether the ranks that it awaits are there.
constexpr milliseconds kLookInterval{10};
void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

std::string joined(const std::vector<std::string>& names) {
  return format(
      "{} {}", names.size() == 1 ? "rank" : "ranks", join(names, ", "));
}

}  // namespace

ProgressEngine::ProgressEngine(
    SharedSegment segment,
    int rank,
    int size,
    ProgressEngineOptions options)
    : fabric_(std::move(segment), rank, size),
      options_(std::move(options)),
      peers_(options_.world_ranks),
      process_(::getpid()),
      patience_(options_.may_spin),
      mailbox_(size) {}

ProgressEngine::~ProgressEngine() { close(); }

bool ProgressEngine::is_own_process() const { return ::getpid() == process_; }

void ProgressEngine::announce() {
  RankPage& page = fabric_.own_page();
  page.process.store(process_);
  page.state.store(PageState::open);
}

void ProgressEngine::watch_peers() { peers_.watch(fabric_); }

void ProgressEngine::begin(const std::shared_ptr<Operation>& operation) {
  std::unique_lock lock(mutex_);
  if (!failure_.empty()) throw std::runtime_error(failure_);
  const bool is_message = operation->is_message();
  if (!is_message) operation->set_deadline(Clock::now() + options_.timeout);
  if (is_driven_) {
    inbox_.push_back(operation);
    has_inbox_.store(true);
    lock.unlock();
    fabric_.ring(rank());
    return;
  }
  if (!is_message) {
    collectives_.push_back(operation);
    return;
  }
  // What there is room for leaves at once.
  inbox_.push_back(operation);
  has_inbox_.store(true);
  is_driven_ = true;
  lock.unlock();
  advance_all();
  lock.lock();
  stop_driving(lock);
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void ProgressEngine::post(const std::shared_ptr<Operation>& operation) {
  if (operation->is_message()) {
    mailbox_.post(std::static_pointer_cast<Message>(operation));
  } else {
    collectives_.push_back(operation);
  }
}

void ProgressEngine::wait(Operation& operation, milliseconds timeout) {
  if (timeout != milliseconds::zero()) {
    operation.set_deadline(Clock::now() + timeout);
  } else if (!operation.has_deadline() && !operation.is_finished()) {
    operation.set_deadline(Clock::now() + options_.timeout);
  }
  std::unique_lock lock(mutex_);
  while (!operation.is_finished()) {
    if (!is_driven_) {
      is_driven_ = true;
      lock.unlock();
      drive(&operation);
      lock.lock();
      stop_driving(lock);
    } else {
      num_waiting_.fetch_add(1);
      // The worker stops driving when it sees that somebody waits.
      fabric_.ring(rank());
      changed_.wait(lock);
      num_waiting_.fetch_sub(1);
    }
  }
  // The worker does not drive while it sees that somebody waits.
  if (wants_worker_ && !is_driven_) changed_.notify_all();
  lock.unlock();
  if (operation.has_failed()) throw std::runtime_error(operation.failure());
}

void ProgressEngine::drive(const Operation* until) {
  int num_looks = 0;
  while (true) {
    const int limit =
        until != nullptr ? patience_.num_looks() : Patience::least();
    if (is_closing_.load())
      fail(format("{}the connection was closed", kSharedMemoryMark));
    if (is_ending_.load()) take_ending();
    const bool has_moved = advance_all();
    if (until != nullptr ? until->is_finished() : is_idle()) return;
    if (until == nullptr && num_waiting_.load() > 0) return;
    if (has_moved) {
      num_looks = 0;
    } else if (++num_looks < limit) {
      pause_processor();
    } else {
      sleep();
    }
  }
}

bool ProgressEngine::is_idle() const {
  return collectives_.empty() && mailbox_.is_idle() && !has_inbox_.load();
}

bool ProgressEngine::advance_all() {
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
    fail(describe_disagreement(error));
    return true;
  } catch (const std::exception& error) {
    // Out of memory, say. Whoever drives goes on, so that nobody waits forever.
    fail(format("{}{}", kSharedMemoryMark, error.what()));
    return true;
  }
  return has_moved;
}

void ProgressEngine::take_inbox() {
  const std::lock_guard lock(mutex_);
  const auto posted = std::exchange(inbox_, {});
  has_inbox_.store(false);
  for (const auto& operation : posted) post(operation);
}

void ProgressEngine::finish(
    const std::vector<std::shared_ptr<Operation>>& operations) {
  std::vector<std::function<void()>> listeners;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& operation : operations) {
      operation->state_.store(
          operation->failure_.empty() ? Operation::kSucceeded
                                      : Operation::kFailed);
      if (operation->listener_)
        listeners.push_back(std::exchange(operation->listener_, {}));
    }
    if (num_waiting_.load() > 0) changed_.notify_all();
  }
  for (const auto& listener : listeners) listener();
}

void ProgressEngine::on_finish(
    Operation& operation,
    std::function<void()> listener) {
  {
    const std::lock_guard lock(mutex_);
    if (!operation.is_finished()) {
      operation.listener_ = std::move(listener);
      return;
    }
  }
  listener();
}

void ProgressEngine::sleep() {
  RankPage& page = fabric_.own_page();
  page.is_asleep.store(1);
  const std::uint32_t seen = page.doorbell.load();
  // What happened before the others saw this rank asleep.
  if (advance_all() || has_inbox_.load()) {
    page.is_asleep.store(0);
    return;
  }
  const auto start = Clock::now();
  futex_wait(page.doorbell, seen, kLookInterval);
  page.is_asleep.store(0);
  patience_.slept(Clock::now() - start);
  check_peers();
}

void ProgressEngine::check_peers() {
  if (has_failed_.load()) return;
  const std::vector<int> gone = peers_.find_gone(fabric_);
  // What they did before they went counts.
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

// Called by the thread that drives, or where none does.
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
    // These were complete before.
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
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) fabric_.ring(peer);
  }
  finish(failed);
}

void ProgressEngine::run_in_background() {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return;
  wants_worker_ = true;
  if (!worker_.joinable()) worker_ = std::thread([this] { run_worker(); });
  if (!is_driven_) changed_.notify_all();
}

void ProgressEngine::run_worker() {
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    if (!wants_worker_ || is_driven_ || num_waiting_.load() > 0) {
      changed_.wait(lock);
      continue;
    }
    is_driven_ = true;
    lock.unlock();
    drive(nullptr);
    lock.lock();
    stop_driving(lock);
    if (is_idle()) wants_worker_ = false;
  }
}

void ProgressEngine::end(const std::string& reason) {
  std::unique_lock lock(mutex_);
  if (is_closed_ || !failure_.empty()) return;
  ending_ = reason;
  is_ending_.store(true);
  if (is_driven_) {
    lock.unlock();
    fabric_.ring(rank());
    return;
  }
  is_driven_ = true;
  stop_driving(lock);
}

void ProgressEngine::stop_driving(std::unique_lock<std::mutex>& lock) {
  // end() leaves it to the thread that drives, which may have looked before.
  while (is_ending_.load()) {
    lock.unlock();
    take_ending();
    lock.lock();
  }
  is_driven_ = false;
  if (num_waiting_.load() > 0 || wants_worker_) changed_.notify_all();
}

// Called by the thread that drives.
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
  while (is_driven_) {
    num_waiting_.fetch_add(1);
    fabric_.ring(rank());
    changed_.wait(lock);
    num_waiting_.fetch_sub(1);
  }
  const bool has_pending = !is_idle();
  // Unless it has failed, there is no last output.
  fabric_.own_page().state.store(PageState::closed);
  changed_.notify_all();
  lock.unlock();
  if (worker_.joinable()) worker_.join();
  if (has_pending)
    fail(format("{}the connection was closed", kSharedMemoryMark));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) fabric_.ring(peer);
  }
}

}  // namespace accelerate::detail
