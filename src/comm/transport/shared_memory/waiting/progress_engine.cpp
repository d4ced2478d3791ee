#include "comm/transport/shared_memory/waiting/progress_engine.h"

#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "base/text/text.h"
#include "comm/transport/shared_memory/waiting/failure.h"

namespace accelerate::detail {

namespace {

using std::chrono::milliseconds;

void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
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
  const bool has_sleeper = has_waiter_ || is_worker_asleep_;
  if (!is_message && !is_driven_ && !has_sleeper) {
    collectives_.push_back(operation);
    return;
  }
  inbox_.push_back(operation);
  has_inbox_.store(true);
  // A message that finds room is sent immediately.
  advance_once(lock);
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

bool ProgressEngine::test(Operation& operation) {
  if (operation.is_finished() || !is_own_process())
    return operation.is_finished();
  std::unique_lock lock(mutex_);
  advance_once(lock);
  return operation.is_finished();
}

void ProgressEngine::advance_once(std::unique_lock<std::mutex>& lock) {
  if (is_driven_) return;
  is_driven_ = true;
  lock.unlock();
  advance_all();
  lock.lock();
  stop_driving(lock);
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
    if (is_driven_ || has_waiter_) {
      num_waiting_.fetch_add(1);
      changed_.wait(lock);
      num_waiting_.fetch_sub(1);
      continue;
    }
    is_driven_ = true;
    has_waiter_ = true;
    // Lets the worker keep sleeping.
    fabric_.own_page().attention.store(Attention::nothing);
    lock.unlock();
    drive(operation);
    lock.lock();
    has_waiter_ = false;
    stop_driving(lock);
  }
  // Threads that drove earlier have seen this thread wait.
  if (wants_worker_ && !is_worker_asleep_) changed_.notify_all();
  lock.unlock();
  if (operation.has_failed()) throw std::runtime_error(operation.failure());
}

void ProgressEngine::drive(const Operation& until) {
  int num_looks = 0;
  while (true) {
    take_notice();
    const bool has_moved = advance_all();
    if (until.is_finished()) return;
    if (has_moved) {
      num_looks = 0;
    } else if (++num_looks < patience_.num_looks()) {
      pause_processor();
    } else {
      sleep();
    }
  }
}

void ProgressEngine::drive_in_background() {
  int num_looks = 0;
  while (num_looks < Patience::least()) {
    take_notice();
    check_peers_at_times();
    const bool has_moved = advance_all();
    if (is_idle() || num_waiting_.load() > 0) return;
    num_looks = has_moved ? 0 : num_looks + 1;
    pause_processor();
  }
}

// Handles what other threads have asked for.
void ProgressEngine::take_notice() {
  if (is_closing_.load())
    fail(format("{}the connection was closed", kSharedMemoryMark));
  if (is_ending_.load()) take_ending();
}

Attention ProgressEngine::attention() const {
  if (!collectives_.empty() || num_listeners_.load() > 0)
    return Attention::everything;
  return mailbox_.attention();
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
    // Out of memory, for example. The driving thread continues, so that no
    // thread waits forever.
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
      if (operation->listener_) {
        listeners.push_back(std::exchange(operation->listener_, {}));
        num_listeners_.fetch_sub(1);
      }
    }
    if (num_waiting_.load() > 0) changed_.notify_all();
  }
  // The waiting thread may be asleep while another one drives.
  if (fabric_.own_page().is_asleep.load() != 0) fabric_.ring(rank());
  for (const auto& listener : listeners) listener();
}

void ProgressEngine::on_finish(
    Operation& operation,
    std::function<void()> listener) {
  std::unique_lock lock(mutex_);
  if (!operation.is_finished()) {
    operation.listener_ = std::move(listener);
    num_listeners_.fetch_add(1);
    // Lets the worker know that this operation needs it.
    if (is_worker_asleep_ && !has_waiter_) advance_once(lock);
    return;
  }
  lock.unlock();
  listener();
}

void ProgressEngine::sleep() {
  check_peers_at_times();
  if (has_failed_.load()) return;
  RankPage& page = fabric_.own_page();
  page.is_asleep.store(1);
  const std::uint32_t seen = page.doorbell.load();
  // Catches events from before the others saw this rank asleep.
  bool has_news = advance_all();
  std::unique_lock lock(mutex_);
  has_news =
      has_news || has_inbox_.load() || is_ending_.load() || is_closing_.load();
  if (!has_news) {
    is_driven_ = false;
    changed_.notify_all();
    lock.unlock();
    const auto start = Clock::now();
    futex_wait(page.doorbell, seen, kLookInterval);
    patience_.slept(Clock::now() - start);
    lock.lock();
    changed_.wait(lock, [this] { return !is_driven_; });
    is_driven_ = true;
  }
  page.is_asleep.store(0);
}

// Called and returns without driving; returns when the worker has something to
// do.
void ProgressEngine::sleep_in_background(std::unique_lock<std::mutex>& lock) {
  RankPage& page = fabric_.own_page();
  const std::uint32_t seen = page.background_bell.load();
  is_worker_asleep_ = true;
  stop_driving(lock);
  while (!is_closed_) {
    lock.unlock();
    futex_wait(page.background_bell, seen, kLookInterval);
    lock.lock();
    // Otherwise the thread that drives or waits does all there is to do.
    if (page.background_bell.load() != seen || (!is_driven_ && !has_waiter_))
      break;
  }
  is_worker_asleep_ = false;
  page.attention.store(Attention::nothing);
}

void ProgressEngine::run_in_background() {
  std::unique_lock lock(mutex_);
  if (is_closed_) return;
  wants_worker_ = true;
  if (!worker_.joinable()) worker_ = std::thread([this] { run_worker(); });
  // A sleeping worker learns what there is to do when a thread stops driving.
  if (!is_worker_asleep_) {
    if (!is_driven_) changed_.notify_all();
  } else if (!has_waiter_) {
    advance_once(lock);
  }
}

void ProgressEngine::run_worker() {
  std::unique_lock lock(mutex_);
  while (!is_closed_) {
    if (!wants_worker_ || is_driven_ || has_waiter_ ||
        num_waiting_.load() > 0) {
      changed_.wait(lock);
      continue;
    }
    is_driven_ = true;
    lock.unlock();
    drive_in_background();
    lock.lock();
    if (is_idle()) {
      wants_worker_ = false;
      stop_driving(lock);
    } else {
      sleep_in_background(lock);
    }
  }
}

void ProgressEngine::stop_driving(std::unique_lock<std::mutex>& lock) {
  while (true) {
    // Requests that other threads left to the driving thread after it last
    // checked.
    if (is_ending_.load()) {
      lock.unlock();
      take_ending();
      lock.lock();
    } else if (has_inbox_.load() && !has_failed_.load()) {
      lock.unlock();
      advance_all();
      lock.lock();
    } else if (!leave_to_worker(lock)) {
      break;
    }
  }
  is_driven_ = false;
  changed_.notify_all();
}

// Tells the other ranks which events must wake the worker, if it sleeps and no
// thread waits. Returns true if there may be something to do first.
bool ProgressEngine::leave_to_worker(std::unique_lock<std::mutex>& lock) {
  if (!is_worker_asleep_ || has_waiter_ || has_failed_.load()) return false;
  const Attention needed = attention();
  std::atomic<Attention>& attention = fabric_.own_page().attention;
  if (attention.load() == needed) return false;
  attention.store(needed);
  lock.unlock();
  // Catches events from before the others saw the change.
  advance_all();
  lock.lock();
  return true;
}

}  // namespace accelerate::detail
