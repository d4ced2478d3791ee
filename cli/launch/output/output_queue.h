#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace accelerate::cli {

/// A file, pipe or terminal, which only an OutputQueue's thread opens, writes
/// and closes.
class OutputFile {
 public:
  /// A descriptor that stays open.
  explicit OutputFile(int descriptor) : descriptor_(descriptor) {}
  /// A file that is opened, and made empty, with the first text. `on_failure`
  /// is called on the thread, with an error number, if the file can no longer
  /// be written; further text is dropped.
  OutputFile(std::string path, std::function<void(int)> on_failure);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Waits until the file has been opened, and no longer than `time`. Returns
  /// an error number, or 0; nothing if it is not open yet.
  [[nodiscard]] std::optional<int> wait_until_open(
      std::chrono::milliseconds time) const;

 private:
  friend class OutputQueue;
  void write(std::string_view text);
  void open();

  int descriptor_ = -1;
  bool is_own_ = false;
  std::string path_;  // empty once the file has been opened
  std::function<void(int)> on_failure_;
  std::promise<int> opened_;
  std::shared_future<int> open_result_{opened_.get_future()};
};

/// Writes texts to files on a thread of its own, in the order in which they
/// were added: a reader that does not read and a disk that does not respond
/// hold up only this thread. Thread-safe.
class OutputQueue {
 public:
  /// With this many unwritten bytes the gate closes.
  static constexpr std::size_t kEnough = 1U << 20U;
  /// Text that would make more unwritten bytes is dropped.
  static constexpr std::size_t kMost = 32U << 20U;

  OutputQueue();
  OutputQueue(const OutputQueue&) = delete;
  OutputQueue& operator=(const OutputQueue&) = delete;
  ~OutputQueue();

  /// Never waits. The thread opens `file` even if `text` is empty.
  void add(std::shared_ptr<OutputFile> file, std::string text);
  /// While texts should not be added, a descriptor that becomes readable once
  /// they should; otherwise -1.
  [[nodiscard]] int gate() const;
  [[nodiscard]] bool is_idle() const;
  [[nodiscard]] std::size_t num_unwritten() const;
  [[nodiscard]] std::size_t num_dropped() const;

 private:
  struct Item {
    std::shared_ptr<OutputFile> file;
    std::string text;
  };
  // Shared with the thread, which outlives the queue if a write never returns.
  struct State {
    State();
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State();
    void run();

    mutable std::mutex mutex;
    std::condition_variable changed;
    std::deque<Item> items;
    std::size_t num_unwritten = 0;
    std::size_t num_dropped = 0;
    bool is_writing = false;
    bool is_full = false;
    bool is_closed = false;
    int room = -1;  // readable unless the queue is full
  };

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace accelerate::cli
