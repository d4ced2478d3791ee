#include "comm/transport/shared_memory/progress/progress_engine.h"

#include <unistd.h>

#include <stdexcept>
#include <utility>

#include "base/text/text.h"

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

std::string closed() {
  return format("{}the connection was closed", kSharedMemoryMark);
}

}  // namespace

ProgressEngine::ProgressEngine(
    SharedSegment segment,
    int rank,
    int size,
    ProgressEngineOptions options)
    : fabric_(std::move(segment), rank, size),
      timeout_(options.timeout),
      peers_(std::move(options.world_ranks)),
      process_(::getpid()),
      operations_(fabric_, peers_, monitor_),
      patience_(options.may_spin) {}

ProgressEngine::~ProgressEngine() { close(); }

bool ProgressEngine::is_own_process() const { return ::getpid() == process_; }

void ProgressEngine::announce() {
  RankPage& page = fabric_.own_page();
  page.process.store(process_);
  page.state.store(PageState::open);
}

void ProgressEngine::watch_peers() { peers_.watch(fabric_); }

void ProgressEngine::begin(const std::shared_ptr<Operation>& operation) {
  std::unique_lock lock(monitor_.mutex);
  operations_.check();
  const bool is_message = operation->is_message();
  if (!is_message) operation->set_deadline(Clock::now() + timeout_);
  const bool has_sleeper = has_waiter_ || is_worker_asleep_;
  if (!is_message && !is_driven_ && !has_sleeper)
    return operations_.add(operation);
  operations_.post(operation);
  // A message that finds room is sent immediately.
  advance_once(lock);
  operations_.check();
}

bool ProgressEngine::test(Operation& operation) {
  if (operation.is_finished() || !is_own_process())
    return operation.is_finished();
  std::unique_lock lock(monitor_.mutex);
  advance_once(lock);
  return operation.is_finished();
}

void ProgressEngine::advance_once(std::unique_lock<std::mutex>& lock) {
  if (is_driven_) return;
  is_driven_ = true;
  lock.unlock();
  operations_.advance();
  lock.lock();
  stop_driving(lock);
}

void ProgressEngine::wait(Operation& operation, milliseconds timeout) {
  if (timeout != milliseconds::zero()) {
    operation.set_deadline(Clock::now() + timeout);
  } else if (!operation.has_deadline() && !operation.is_finished()) {
    operation.set_deadline(Clock::now() + timeout_);
  }
  std::unique_lock lock(monitor_.mutex);
  while (!operation.is_finished()) {
    if (is_driven_ || has_waiter_) {
      monitor_.wait(lock);
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
  if (wants_worker_ && !is_worker_asleep_) monitor_.changed.notify_all();
  lock.unlock();
  if (operation.has_failed()) throw std::runtime_error(operation.failure());
}

void ProgressEngine::drive(const Operation& until) {
  int num_looks = 0;
  while (true) {
    take_notice();
    const bool has_moved = operations_.advance();
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
    operations_.check_peers();
    const bool has_moved = operations_.advance();
    if (operations_.is_idle() || monitor_.num_waiting.load() > 0) return;
    num_looks = has_moved ? 0 : num_looks + 1;
    pause_processor();
  }
}

// Handles what other threads have asked for.
void ProgressEngine::take_notice() {
  if (is_closed_.load()) operations_.fail(closed());
  operations_.take_ending();
}

void ProgressEngine::on_finish(
    Operation& operation,
    std::function<void()> listener) {
  std::unique_lock lock(monitor_.mutex);
  if (!operation.is_finished()) {
    operations_.listen(operation, std::move(listener));
    // Lets the worker know that this operation needs it.
    if (is_worker_asleep_ && !has_waiter_) advance_once(lock);
    return;
  }
  lock.unlock();
  listener();
}

void ProgressEngine::sleep() {
  operations_.check_peers();
  if (operations_.has_failed()) return;
  RankPage& page = fabric_.own_page();
  page.is_asleep.store(1);
  const std::uint32_t seen = page.doorbell.load();
  // Catches events from before the others saw this rank asleep.
  bool has_news = operations_.advance();
  std::unique_lock lock(monitor_.mutex);
  has_news = has_news || operations_.has_requests() || is_closed_.load();
  if (!has_news) {
    is_driven_ = false;
    monitor_.changed.notify_all();
    lock.unlock();
    const auto start = Clock::now();
    futex_wait(page.doorbell, seen, kPeerCheckInterval);
    patience_.slept(Clock::now() - start);
    lock.lock();
    monitor_.changed.wait(lock, [this] { return !is_driven_; });
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
    futex_wait(page.background_bell, seen, kPeerCheckInterval);
    lock.lock();
    // Otherwise the thread that drives or waits does all the work.
    if (page.background_bell.load() != seen || (!is_driven_ && !has_waiter_))
      break;
  }
  is_worker_asleep_ = false;
  page.attention.store(Attention::nothing);
}

void ProgressEngine::run_in_background() {
  std::unique_lock lock(monitor_.mutex);
  if (is_closed_) return;
  wants_worker_ = true;
  if (!worker_.joinable()) worker_ = std::thread([this] { run_worker(); });
  // A sleeping worker learns what there is to do when a thread stops driving.
  if (!is_worker_asleep_) {
    if (!is_driven_) monitor_.changed.notify_all();
  } else if (!has_waiter_) {
    advance_once(lock);
  }
}

void ProgressEngine::run_worker() {
  std::unique_lock lock(monitor_.mutex);
  while (!is_closed_) {
    if (!wants_worker_ || is_driven_ || has_waiter_ ||
        monitor_.num_waiting.load() > 0) {
      monitor_.changed.wait(lock);
      continue;
    }
    is_driven_ = true;
    lock.unlock();
    drive_in_background();
    lock.lock();
    if (operations_.is_idle()) {
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
    if (operations_.has_requests()) {
      lock.unlock();
      operations_.take_ending();
      operations_.advance();
      lock.lock();
    } else if (!leave_to_worker(lock)) {
      break;
    }
  }
  is_driven_ = false;
  monitor_.changed.notify_all();
}

// Tells the other ranks which events must wake the worker, if it sleeps and no
// thread waits. Returns true if there may be something to do first.
bool ProgressEngine::leave_to_worker(std::unique_lock<std::mutex>& lock) {
  if (!is_worker_asleep_ || has_waiter_ || operations_.has_failed())
    return false;
  const Attention needed = operations_.attention();
  std::atomic<Attention>& attention = fabric_.own_page().attention;
  if (attention.load() == needed) return false;
  attention.store(needed);
  lock.unlock();
  // Catches events from before the others saw the change.
  operations_.advance();
  lock.lock();
  return true;
}

void ProgressEngine::end(const std::string& reason) {
  std::unique_lock lock(monitor_.mutex);
  if (is_closed_.load() || operations_.has_failed()) return;
  operations_.request_end(reason);
  if (is_driven_) return;
  is_driven_ = true;
  stop_driving(lock);
}

void ProgressEngine::close() {
  if (!is_own_process()) return;
  std::unique_lock lock(monitor_.mutex);
  if (is_closed_.exchange(true)) return;
  while (is_driven_ || has_waiter_) {
    fabric_.ring(rank());
    monitor_.wait(lock);
  }
  fabric_.ring_in_background(rank());
  const bool has_pending = !operations_.is_idle();
  // There is no last output unless it has failed.
  fabric_.own_page().state.store(PageState::closed);
  monitor_.changed.notify_all();
  lock.unlock();
  if (worker_.joinable()) worker_.join();
  if (has_pending) operations_.fail(closed());
  fabric_.ring_all();
}

}  // namespace accelerate::detail
