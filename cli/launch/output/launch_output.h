#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "cli/launch/output/output_queue.h"
#include "cli/launch/signals.h"

namespace accelerate::cli {

/// A file and the queue that writes it; or nothing. Copies share both.
class OutputTarget {
 public:
  OutputTarget() = default;
  OutputTarget(
      std::shared_ptr<OutputQueue> queue,
      std::shared_ptr<OutputFile> file)
      : queue_(std::move(queue)), file_(std::move(file)) {}

  [[nodiscard]] bool is_open() const { return file_ != nullptr; }
  /// Never waits.
  void write(std::string text) const;
  /// See OutputQueue::gate(); -1 for nothing.
  [[nodiscard]] int gate() const;
  /// Lets the queue's thread close the file, unless there are other copies.
  void close();

 private:
  std::shared_ptr<OutputQueue> queue_;
  std::shared_ptr<OutputFile> file_;
};

/// What a launcher and its ranks print, and the ranks' log files. Nothing here
/// waits for a reader or a disk, except the end. Thread-safe.
class LaunchOutput {
 public:
  /// How long open_log() waits for a disk.
  static constexpr std::chrono::milliseconds kPatience{10'000};

  /// Construct it after the Watchdog, since it starts threads.
  explicit LaunchOutput(
      const Signals& signals,
      std::chrono::milliseconds patience = kPatience);
  LaunchOutput(const LaunchOutput&) = delete;
  LaunchOutput& operator=(const LaunchOutput&) = delete;
  /// Waits until all is written: as long as readers continue to read, and a
  /// minute when they do not, a terminal excepted; two seconds once a signal
  /// has told the launcher to end. Reports how much is lost, if that is
  /// possible.
  ~LaunchOutput();

  /// Prints a line of the launcher on standard error, among the ranks' lines.
  void say(const std::string& text) const { err_.write(text); }
  /// Standard output or standard error.
  [[nodiscard]] const OutputTarget& of(int descriptor) const;
  /// Makes a rank's log. Warns if it can no longer be written. With
  /// `must_open`, waits until it is open, and throws ConfigError if that fails,
  /// or Stopped if a signal tells the launcher to end meanwhile. If that takes
  /// too long, it warns, and waits for neither this nor a later log: ranks'
  /// output is kept until their logs are open.
  [[nodiscard]] OutputTarget open_log(const std::string& path, bool must_open);

 private:
  void require_open(const OutputFile& file, const std::string& path);
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] std::size_t num_unwritten() const;
  void wait_until_written() const;
  [[nodiscard]] std::string describe_losses() const;
  void wait_for_last_words() const;

  const Signals& signals_;
  std::chrono::milliseconds patience_;
  bool has_slow_disk_ = false;
  // Standard output and error share a queue if they are the same file, so that
  // their lines keep their order.
  std::shared_ptr<OutputQueue> out_queue_;
  std::shared_ptr<OutputQueue> err_queue_;
  std::shared_ptr<OutputQueue> log_queue_;  // with the first log
  OutputTarget out_;
  OutputTarget err_;
};

}  // namespace accelerate::cli
