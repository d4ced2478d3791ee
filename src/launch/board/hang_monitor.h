#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "launch/board/board.h"
#include "launch/board/hang_detector.h"
#include "launch/board/straggler_detector.h"
#include "launch/stacks/thread_stacks.h"

namespace accelerate::detail {

/// What happens when ranks hang.
enum class OnHang {
  warn,    ///< a report that names who holds up whom
  stacks,  ///< and the stacks of the ranks that hold up the others
  kill,    ///< and the ranks are killed whose stacks were taken
};

/// Parses "warn", "stacks" or "kill". Throws ConfigError for another string.
OnHang parse_on_hang(std::string_view text);

struct HangMonitorOptions {
  /// How long ranks wait before it is reported; 0: never.
  std::chrono::milliseconds threshold = std::chrono::seconds(10);
  OnHang on_hang = OnHang::stacks;
  /// The directories in which to look for the tool that takes stacks.
  std::string path = {};
  /// Takes the lines of a report. Called by look(), and by another thread for
  /// stacks.
  std::function<void(const std::string& text)> say = {};
};

/// Watches the ranks of a board: reports those that hold up others, and those
/// that are slower than the others for a minute. Reports are also kept on the
/// board. look() is called several times per second, by one thread, and returns
/// at once.
class HangMonitor {
 public:
  HangMonitor(const Board& board, HangMonitorOptions options);
  HangMonitor(const HangMonitor&) = delete;
  HangMonitor& operator=(const HangMonitor&) = delete;
  /// Retires, and waits until the stack that is being taken is there.
  ~HangMonitor();

  void look();
  /// Takes no further stacks and ends no process: the ranks have moved on since
  /// the report.
  void retire() { is_retired_.store(true); }
  /// True while stacks are taken.
  [[nodiscard]] bool is_busy() const { return takes_stacks_.load(); }

  /// The time from one look to the next that the detector needs.
  static constexpr std::chrono::milliseconds kInterval{250};

 private:
  // What programs have said on their pages.
  void read_settings();
  void say(const std::string& text);

  const Board& board_;
  HangMonitorOptions options_;
  HangDetector detector_;
  StragglerDetector stragglers_;
  std::mutex saying_;
  std::thread stacks_;
  // Whether that thread is still at work.
  std::atomic<bool> takes_stacks_{false};
  std::atomic<bool> is_retired_{false};
};

}  // namespace accelerate::detail
