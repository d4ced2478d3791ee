#pragma once

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include <accelerate/checkpoint.h>

#include "checkpoint/save/checkpoint_writer.h"
#include "checkpoint/save/snapshot.h"

namespace accelerate::detail {

/// The state that a ticket shares with its save.
struct SaveProgress {
  std::filesystem::path path;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  bool was_skipped = false;
  std::exception_ptr error;
  /// True once the error has been thrown to a caller, or if only the ticket may
  /// throw it.
  bool was_reported = false;
};

/// Runs one save at a time, on the caller's thread or its own.
class Saver {
 public:
  Saver() = default;
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  /// Waits for the save in progress.
  ~Saver();

  [[nodiscard]] bool is_busy() const;
  /// Returns once no save is in progress; the last one's error is kept for
  /// wait().
  void join();
  /// Returns once no save is in progress. Throws the last one's error unless it
  /// was already thrown.
  void wait();
  /// Writes synchronously.
  std::shared_ptr<SaveProgress> run(std::unique_ptr<CheckpointWriter> writer);
  /// Copies everything and writes on another thread. No save may be in
  /// progress.
  std::shared_ptr<SaveProgress> start(std::unique_ptr<CheckpointWriter> writer);

 private:
  std::shared_ptr<SaveProgress> current_;
  std::thread thread_;
  SnapshotMemory memory_;
};

}  // namespace accelerate::detail
