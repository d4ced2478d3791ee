#include "data/loading/worker_pool.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>

#include <accelerate/error.h>

#include "base/text/text.h"

// Sets the number of threads of LibTorch's OpenMP runtime for this thread:
// at::set_num_threads would also change threads that are not ours.
extern "C" [[gnu::weak]] void omp_set_num_threads(int num_threads);

namespace accelerate::detail {

namespace {

std::string describe(const Worker& worker) {
  switch (worker.doing()) {
    case Worker::Doing::waiting:
      return "waiting";
    case Worker::Doing::reading:
      return format("reading sample {}", worker.place());
    case Worker::Doing::collating:
      return format("collating batch {}", worker.place());
    case Worker::Doing::transferring:
      return format("transferring batch {}", worker.place());
  }
  return {};
}

}  // namespace

struct WorkerPool::Shared {
  struct Slot {
    std::unique_ptr<LoadedBatch> job;
    std::exception_ptr failure;
    bool is_last = false;
    bool is_made = false;
    bool is_taken = false;
  };

  WorkerPoolOptions options;
  Claim claim;
  at::ThreadLocalState thread_state;

  /// Held while claiming, so that slots are in claim order.
  std::mutex claiming;

  /// Guards the other members.
  std::mutex mutex;
  std::condition_variable made, room, gone;
  std::deque<Slot> slots;
  /// Index of the first slot.
  std::int64_t first_slot = 0;
  std::int64_t num_held = 0;
  bool is_stopping = false;
  bool has_ended = false;
  bool loop_waits = false;
  bool worker_waits = false;
  std::size_t num_gone = 0;
  int num_claiming = 0;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  /// Used by the loop's own thread when it makes a batch instead of waiting.
  Worker loop_worker;
  /// Running mean of the time that jobs take, in seconds.
  double mean_seconds = 1;

  // Returns the slot to hand out next; null if none is ready.
  Slot* find_made() {
    if (slots.empty()) return nullptr;
    if (options.in_order)
      return slots.front().is_made ? &slots.front() : nullptr;
    for (Slot& slot : slots) {
      const bool is_its_turn = !slot.is_last || num_held == 1;
      if (slot.is_made && !slot.is_taken && is_its_turn) return &slot;
    }
    return nullptr;
  }
  // Claims a slot and the work for it. Returns nothing if there is no more
  // work, or no room.
  std::unique_ptr<LoadedBatch>
  claim_next(Worker& worker, std::int64_t& number, bool waits_for_room);
  // Runs a claimed job and puts the result into its slot. Drops the result
  // after a stop.
  void
  make(Worker& worker, std::unique_ptr<LoadedBatch> job, std::int64_t number);
  // True if making a batch takes no longer than sleeping until one is made.
  // False with a timeout, which cannot interrupt the loop's own thread.
  [[nodiscard]] bool should_make_one() const {
    constexpr double kSleepSeconds = 200e-6;
    return mean_seconds < kSleepSeconds && options.timeout.count() == 0 &&
        !has_ended && num_held < options.capacity;
  }
  // Makes one batch in the calling thread. Returns false if none was claimed.
  bool make_one();
  [[noreturn]] void throw_timeout() const;
};

// The caller must hold `claiming`.
std::unique_ptr<LoadedBatch> WorkerPool::Shared::claim_next(
    Worker& worker,
    std::int64_t& number,
    bool waits_for_room) {
  {
    std::unique_lock lock(mutex);
    while (waits_for_room && !is_stopping && !has_ended &&
           num_held >= options.capacity) {
      worker_waits = true;
      room.wait(lock);
    }
    if (is_stopping || has_ended || num_held >= options.capacity)
      return nullptr;
    ++num_claiming;
  }
  std::unique_ptr<LoadedBatch> job;
  std::exception_ptr failure;
  try {
    job = claim(worker);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex);
  --num_claiming;
  has_ended = has_ended || !job;
  if (!job && !failure) {
    made.notify_all();
    return nullptr;
  }
  number = first_slot + static_cast<std::int64_t>(slots.size());
  ++num_held;
  Slot& slot = slots.emplace_back();
  slot.failure = failure;
  slot.is_made = failure != nullptr;
  slot.is_last = failure != nullptr || job->is_last;
  if (failure) made.notify_all();
  return job;
}

void WorkerPool::Shared::make(
    Worker& worker,
    std::unique_ptr<LoadedBatch> job,
    std::int64_t number) {
  const auto start = std::chrono::steady_clock::now();
  std::exception_ptr failure;
  try {
    job->run(worker);
  } catch (...) {
    failure = std::current_exception();
  }
  const std::chrono::duration<double> elapsed =
      std::chrono::steady_clock::now() - start;
  worker.doing_.store(Worker::Doing::waiting, std::memory_order_relaxed);
  const std::lock_guard lock(mutex);
  if (is_stopping) return;
  constexpr double kWeight = 0.2;
  mean_seconds += kWeight * (elapsed.count() - mean_seconds);
  Slot& slot = slots[static_cast<std::size_t>(number - first_slot)];
  slot.job = std::move(job);
  slot.failure = failure;
  slot.is_made = true;
  if (loop_waits && find_made() != nullptr) {
    loop_waits = false;
    made.notify_one();
  }
}

bool WorkerPool::Shared::make_one() {
  std::unique_lock claims(claiming, std::try_to_lock);
  if (!claims) return false;
  std::int64_t number = 0;
  std::unique_ptr<LoadedBatch> job = claim_next(loop_worker, number, false);
  claims.unlock();
  if (!job) return false;
  make(loop_worker, std::move(job), number);
  return true;
}

void WorkerPool::Shared::throw_timeout() const {
  std::string busy;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    busy += format(
        "{}worker {} is {}", i == 0 ? "" : ", ", i, describe(*workers[i]));
  }
  throw Error(format(
      "[data] no batch was ready within timeout = {} ms: {}; look at what is "
      "slow there, or raise timeout",
      options.timeout.count(),
      busy));
}

WorkerPool::WorkerPool(const WorkerPoolOptions& options, Claim claim)
    : shared_(std::make_shared<Shared>()) {
  shared_->options = options;
  shared_->claim = std::move(claim);
  for (int i = 0; i < options.num_workers; ++i) {
    shared_->workers.push_back(std::make_unique<Worker>());
  }
  try {
    for (std::size_t i = 0; i < shared_->workers.size(); ++i) {
      shared_->threads.emplace_back(&WorkerPool::work, shared_, i);
    }
  } catch (...) {
    bool is_claiming = false;
    stop(is_claiming);
    throw;
  }
}

WorkerPool::~WorkerPool() {
  bool is_claiming = false;
  stop(is_claiming);
}

void WorkerPool::work(
    const std::shared_ptr<Shared>& shared,
    std::size_t index) {
  // Grad mode and other thread-local state are the loop's.
  const at::ThreadLocalStateGuard same_state(shared->thread_state);
  // Parallelism is between workers. The first call makes LibTorch initialize
  // this thread's number of threads, which would otherwise undo the second
  // call.
  at::get_num_threads();
  if (omp_set_num_threads != nullptr) omp_set_num_threads(1);

  Worker& worker = *shared->workers[index];
  while (true) {
    std::unique_lock claims(shared->claiming);
    std::int64_t number = 0;
    std::unique_ptr<LoadedBatch> job = shared->claim_next(worker, number, true);
    claims.unlock();
    if (!job) break;
    shared->make(worker, std::move(job), number);
  }
  const std::lock_guard lock(shared->mutex);
  ++shared->num_gone;
  shared->gone.notify_all();
}

std::unique_ptr<LoadedBatch> WorkerPool::next() {
  Shared& shared = *shared_;
  std::unique_lock lock(shared.mutex);
  const auto deadline =
      std::chrono::steady_clock::now() + shared.options.timeout;
  Shared::Slot* slot = nullptr;
  bool could_make_one = true;
  while ((slot = shared.find_made()) == nullptr) {
    if (shared.has_ended && shared.num_held == 0) return nullptr;
    if (could_make_one && shared.should_make_one()) {
      lock.unlock();
      could_make_one = shared.make_one();
      lock.lock();
      // Checks again: anything may have happened meanwhile, including the end
      // of the pass.
      continue;
    }
    could_make_one = true;
    shared.loop_waits = true;
    if (shared.options.timeout.count() == 0) {
      shared.made.wait(lock);
    } else if (
        shared.made.wait_until(lock, deadline) == std::cv_status::timeout &&
        shared.find_made() == nullptr) {
      shared.throw_timeout();
    }
  }
  shared.loop_waits = false;
  std::unique_ptr<LoadedBatch> job = std::move(slot->job);
  const std::exception_ptr failure = std::exchange(slot->failure, nullptr);
  slot->is_taken = true;
  while (!shared.slots.empty() && shared.slots.front().is_taken) {
    shared.slots.pop_front();
    ++shared.first_slot;
  }
  --shared.num_held;
  // Does not notify for every free slot: waking a thread costs more than a
  // small batch.
  if (shared.worker_waits && shared.num_held <= shared.options.capacity / 2) {
    shared.worker_waits = false;
    shared.room.notify_all();
  }
  lock.unlock();
  if (failure) std::rethrow_exception(failure);
  return job;
}

std::int64_t WorkerPool::num_in_turn() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->first_slot;
}

std::string WorkerPool::stop(bool& is_claiming) noexcept {
  Shared& shared = *shared_;
  is_claiming = false;
  std::string left_behind;
  if (shared.threads.empty()) return left_behind;
  std::unique_lock lock(shared.mutex);
  shared.is_stopping = true;
  for (const auto& worker : shared.workers) {
    worker->is_stopping_.store(true, std::memory_order_relaxed);
  }
  shared.room.notify_all();
  const auto all_are_gone = [&] {
    return shared.num_gone == shared.threads.size();
  };
  if (shared.options.timeout.count() > 0 &&
      !shared.gone.wait_for(lock, shared.options.timeout, all_are_gone)) {
    is_claiming = shared.num_claiming > 0;
    for (std::size_t i = 0; i < shared.threads.size(); ++i) {
      if (shared.workers[i]->doing() != Worker::Doing::waiting) {
        left_behind = describe(*shared.workers[i]);
      }
      shared.threads[i].detach();
    }
    shared.threads.clear();
    return left_behind.empty() ? "starting" : left_behind;
  }
  lock.unlock();
  for (std::thread& thread : shared.threads) thread.join();
  shared.threads.clear();
  return left_behind;
}

}  // namespace accelerate::detail
