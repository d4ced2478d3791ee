#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "format/journal/journal_entry.h"
#include "format/journal/journal_file.h"
#include "format/journal/journal_frame.h"

namespace accelerate::detail {

struct JournalWriterOptions {
  /// The longest time for which an entry is in memory only.
  std::chrono::milliseconds interval{500};
  /// Entries are written earlier when they take this many bytes.
  std::size_t early_bytes = std::size_t{1} << 20U;
  /// While the file cannot be written, as many bytes of entries are kept; what
  /// is logged then is lost, and counted. A file that is slower than what is
  /// logged makes callers wait instead.
  std::size_t most_waiting_bytes = std::size_t{64} << 20U;
  /// Gets a line when the file cannot be written, and when it can be again: on
  /// the writer's thread, before flush() returns. It must not wait for the writer.
  std::function<void(const std::string& line)> report = {};
};

/// Appends to a journal. Entries are collected in memory and written by a
/// thread of its own, which syncs the file: what is older than the interval
/// survives the death of the process and of the machine. A disk that is full
/// stops nothing; entries wait until there is room. Thread-safe.
class JournalWriter {
 public:
  using Options = JournalWriterOptions;
  using Clock = std::chrono::system_clock;

  /// Opens the journal, or makes it, and its directory. What an earlier process
  /// left unfinished at the end is cut off. `description`: JSON about this
  /// process. Throws Error if it cannot be opened or another process writes it.
  JournalWriter(
      const std::filesystem::path& path,
      std::string description,
      Options options = {});
  /// For tests: the same with a file that open_journal_file() opened.
  JournalWriter(
      std::unique_ptr<JournalFile> file,
      const std::filesystem::path& path,
      std::string description,
      Options options);
  /// For tests: a file that is at `offset`.
  JournalWriter(
      std::unique_ptr<JournalFile> file,
      std::uint64_t offset,
      std::uint64_t sequence,
      Options options);
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;
  /// Writes what was logged.
  ~JournalWriter();

  /// Costs about as much as copying names and values. `time`, in seconds since
  /// 1970: when it was logged, if that was not now.
  void log(
      std::span<const std::pair<std::string_view, double>> scalars,
      std::optional<std::int64_t> step,
      std::optional<double> time = std::nullopt);
  /// Throws Error if the event is larger than a frame.
  void add(
      JournalEvent event,
      std::optional<std::int64_t> step,
      std::optional<double> time = std::nullopt);
  /// The run goes on after `step`: figures of later steps are void.
  void rewind_to(std::int64_t step);

  /// Returns when all entries logged before are durable. Returns false if they
  /// cannot be written now.
  bool flush();
  /// Entries that were dropped because the file could not be written.
  [[nodiscard]] std::uint64_t num_lost_entries() const;

 private:
  void start();
  bool has_room(std::unique_lock<std::mutex>& lock, std::size_t num_bytes);
  [[nodiscard]] bool is_full(std::size_t num_bytes) const;
  void run();
  void await_write(std::unique_lock<std::mutex>& lock);
  void write_pending(std::unique_lock<std::mutex>& lock);
  void note_losses();
  void report(bool was_failing, int problem) const;
  int write_frame(const std::string& frame);

  Options options_;
  std::unique_ptr<JournalFile> file_;
  std::uint64_t offset_ = 0;        // the end of what is surely in the file
  std::uint64_t sequence_ = 0;      // of the next frame
  std::deque<std::string> frames_;  // not written yet

  mutable std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable written_;
  JournalEncoder pending_;
  std::size_t num_waiting_bytes_ = 0;  // of frames_
  std::uint64_t num_begun_ = 0;        // attempts to write
  std::uint64_t num_ended_ = 0;
  std::uint64_t num_lost_ = 0;
  std::uint64_t num_lost_noted_ = 0;
  bool is_failing_ = false;
  bool is_wanted_ = false;  // write before the interval is over
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace accelerate::detail
