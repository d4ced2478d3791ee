#include "format/tensors/box_reader.h"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "format/tensors/read_jobs.h"
#include "format/tensors/verified_read.h"

namespace accelerate::detail {

/// The lists read by one call of read_lists(), and its threads.
class BoxReader::Lists {
 public:
  Lists(BoxReader& reader, const NextList& next)
      : reader_(reader), next_(next) {}

  void read() {
    work(0);
    // Threads start further threads while there is something to read.
    for (std::size_t i = 0; i < threads_.size(); ++i) threads_[i].join();
  }

 private:
  struct ActiveList {
    BoxList list;
    ReadJobs jobs;
    std::size_t next = 0;      // job
    std::size_t num_left = 0;  // unfinished jobs
    std::exception_ptr failure = nullptr;

    [[nodiscard]] bool has_next() const { return next < jobs.size(); }
  };
  using Place = std::list<ActiveList>::iterator;
  using Lock = std::unique_lock<std::mutex>;

  void work(std::size_t thread) {
    while (RangeReader* const reader = wait_for_job(thread))
      reader->read([&] { return take(); });
  }

  // Returns null once everything is done.
  RangeReader* wait_for_job(std::size_t thread) {
    Lock lock(mutex_);
    while (true) {
      if (find_job(lock) != lists_.end()) return reader_.readers_[thread].get();
      if (lists_.empty() && !is_asking_) {
        is_ended_ = true;
        changed_.notify_all();
        return nullptr;
      }
      changed_.wait(lock);
    }
  }

  // Returns the list that has the next job; asks for a new list if none has.
  Place find_job(Lock& lock) {
    while (true) {
      const auto found = std::ranges::find_if(
          lists_, [](const auto& each) { return each.has_next(); });
      const bool can_ask = !is_asking_ && !is_ended_;
      if (found != lists_.end() || !can_ask || !ask(lock)) return found;
    }
  }

  // Requests the next list. Returns whether there was one.
  bool ask(Lock& lock) {
    is_asking_ = true;
    lock.unlock();
    std::optional<BoxList> list = next_();
    ReadJobs jobs;
    std::exception_ptr failure;
    try {
      if (list) jobs = read_jobs(list->boxes);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::size_t num_jobs = jobs.size();
    if (list && num_jobs == 0) list->done(failure);
    lock.lock();
    is_asking_ = false;
    if (num_jobs > 0) {
      lists_.push_back({std::move(*list), std::move(jobs), 0, num_jobs});
      begin_threads(num_reading_threads(num_jobs));
    }
    if (num_jobs > 0 || lists_.empty()) changed_.notify_all();
    return list.has_value();
  }

  // The calling thread counts as one. If a thread cannot be started, reading
  // continues with fewer.
  void begin_threads(std::size_t count) {
    try {
      while (threads_.size() + 1 < count) {
        const std::size_t thread = threads_.size() + 1;
        if (reader_.readers_.size() <= thread)
          reader_.readers_.push_back(std::make_unique<RangeReader>());
        threads_.emplace_back([this, thread] { work(thread); });
      }
    } catch (const std::system_error&) {
    }
  }

  // Returns the next range to read; runs copies that come before it.
  std::optional<RangeReader::Task> take() {
    Lock lock(mutex_);
    while (true) {
      const Place place = find_job(lock);
      if (place == lists_.end()) return std::nullopt;
      const std::size_t i = place->next++;
      const std::vector<ReadJob>& ranges = place->jobs.ranges;
      if (i < ranges.size()) return task(place, ranges[i]);
      lock.unlock();
      std::exception_ptr failure;
      try {
        place->jobs.copies[i - ranges.size()]();
      } catch (...) {
        failure = std::current_exception();
      }
      finish_job(place, failure);
      lock.lock();
    }
  }

  RangeReader::Task task(Place place, const ReadJob& job) {
    std::shared_ptr<ChunkHash> hash;
    RangeReader::Task task;
    task.range = job.range;
    if (job.verifies) {
      hash = std::make_shared<ChunkHash>(job.range);
      task.visit = [hash](std::span<const std::byte> piece) {
        hash->add(piece);
      };
    }
    task.done = [this, place, &job, hash](std::exception_ptr failure) {
      finish_job(place, result_of(job, hash.get(), failure));
    };
    return task;
  }

  static std::exception_ptr result_of(
      const ReadJob& job,
      ChunkHash* hash,
      const std::exception_ptr& failure) {
    try {
      if (hash != nullptr) {
        verify(*hash, failure);
      } else if (failure) {
        return failure;
      }
    } catch (...) {
      return std::current_exception();
    }
    std::uint64_t num_bytes = 0;
    for (const FileSegment& segment : job.range.segments)
      num_bytes += segment.out.size();
    job.range.file->count_read(num_bytes);
    return nullptr;
  }

  static void verify(ChunkHash& hash, const std::exception_ptr& failure) {
    try {
      if (failure) std::rethrow_exception(failure);
    } catch (const Error& error) {
      throw DamagedCheckpoint(error.what());
    }
    hash.finish();
  }

  // Once a job has failed, skips the jobs of its list that have not begun.
  void finish_job(Place place, const std::exception_ptr& failure) {
    Lock lock(mutex_);
    if (failure && !place->failure) {
      place->failure = failure;
      place->num_left -= place->jobs.size() - place->next;
      place->next = place->jobs.size();
    }
    if (--place->num_left > 0) return;
    lock.unlock();
    place->list.done(place->failure);
    lock.lock();
    lists_.erase(place);
    changed_.notify_all();
  }

  BoxReader& reader_;
  const NextList& next_;
  std::mutex mutex_;
  std::condition_variable changed_;
  /// Unfinished lists, in order.
  std::list<ActiveList> lists_;
  bool is_asking_ = false;
  /// Set once no further list may be requested.
  bool is_ended_ = false;
  std::vector<std::thread> threads_;
};

BoxReader::BoxReader() = default;
BoxReader::~BoxReader() = default;
void BoxReader::clear() { readers_.clear(); }

void BoxReader::read_lists(const NextList& next) {
  if (readers_.empty()) readers_.push_back(std::make_unique<RangeReader>());
  Lists(*this, next).read();
}

void BoxReader::read(const std::vector<BoxToRead>& boxes) {
  std::exception_ptr failure;
  std::optional<BoxList> only =
      BoxList{boxes, [&](std::exception_ptr found) { failure = found; }};
  read_lists([&] { return std::exchange(only, std::nullopt); });
  if (failure) std::rethrow_exception(failure);
}

void read_boxes(const std::vector<BoxToRead>& boxes) {
  BoxReader().read(boxes);
}

}  // namespace accelerate::detail
