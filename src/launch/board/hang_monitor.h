#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include <sys/types.h>

#include "launch/board/board.h"
#include "launch/board/hang_detector.h"
#include "launch/board/straggler_detector.h"
#include "launch/stacks/thread_stacks.h"

namespace accelerate::detail {

/// What to do when ranks hang.
enum class OnHang {
  warn,    ///< reports which ranks hold up which
  stacks,  ///< also takes the stacks of the ranks that hold up others
  kill,    ///< also kills the ranks whose stacks were taken
};

/// Parses "warn", "stacks" or "kill". Throws ConfigError for another string.
OnHang parse_on_hang(std::string_view text);

struct HangMonitorOptions {
  /// How long ranks wait before a hang is reported; 0: never.
  std::chrono::milliseconds threshold = std::chrono::seconds(10);
  OnHang on_hang = OnHang::stacks;
  /// The directories to search for the tool that takes stacks.
  std::string path = {};
  /// Receives the lines of a report. Called by look(), and on another thread
  /// for stacks.
  std::function<void(const std::string& text)> say = {};
};

/// Monitors the ranks of a board: reports those that hold up others, and those
/// that have been slower than the others for a minute. Reports are also kept on
/// the board. look() is called several times per second, by one thread, and
/// returns immediately.
class HangMonitor {
 public:
  HangMonitor(const Board& board, HangMonitorOptions options);
  HangMonitor(const HangMonitor&) = delete;
  HangMonitor& operator=(const HangMonitor&) = delete;
  /// Retires, and waits until the stack in progress has been taken.
  ~HangMonitor();

  void look();
  /// Stops taking stacks and killing processes: the ranks have moved on since
  /// the report.
  void retire() { is_retired_.store(true); }
  /// True while stacks are taken.
  [[nodiscard]] bool is_busy() const { return takes_stacks_.load(); }

  /// The interval between looks that the detector needs.
  static constexpr std::chrono::milliseconds kInterval{250};

 private:
  // Reads the options that programs have set on their pages.
  void read_settings();
  void say(const std::string& text);

  const Board& board_;
  HangMonitorOptions options_;
  HangDetector detector_;
  StragglerDetector stragglers_;
  std::mutex saying_;
  std::thread stacks_;
  // Whether that thread is still working.
  std::atomic<bool> takes_stacks_{false};
  std::atomic<bool> is_retired_{false};
};

}  // namespace accelerate::detail
