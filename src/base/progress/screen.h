#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace accelerate::detail {

/// The progress bars at the bottom of a terminal, and the lines printed above
/// them. After each change the cursor is at the end of the last bar.
/// Thread-safe.
class ProgressScreen {
 public:
  using Write = std::function<void(std::string_view)>;

  ProgressScreen(Write write, bool is_terminal);

  /// The screen on this process's standard error.
  static ProgressScreen& of_standard_error();

  [[nodiscard]] bool is_terminal() const { return is_terminal_; }

  /// Adds a bar below the others; returns its number.
  std::uint64_t add();
  void draw(std::uint64_t bar, std::string line);
  /// Removes the bar; `left_line`, if not empty, stays above the others.
  void remove(std::uint64_t bar, std::string_view left_line);
  /// Prints lines above the bars. The text needs no newline at its end.
  void write_line(std::string_view text);
  /// Hides the bars while `print` writes lines to the same terminal by other
  /// means.
  void print_above(const std::function<void()>& print);

 private:
  struct Bar {
    std::uint64_t number = 0;
    std::string line = {};
  };

  /// The codes that take the bars off the screen, and put them back.
  [[nodiscard]] std::string hide();
  [[nodiscard]] std::string show();

  Write write_;
  bool is_terminal_;
  std::mutex mutex_;
  std::vector<Bar> bars_;
  std::uint64_t next_number_ = 0;
  /// Number of lines of bars on the screen.
  std::size_t num_shown_ = 0;
};

/// Writes the line and a newline in one call, so that lines from several
/// threads do not mix.
void write_line_to_standard_output(std::string_view line);

}  // namespace accelerate::detail
