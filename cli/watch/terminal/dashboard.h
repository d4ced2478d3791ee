#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/watch/watched_runs.h"

namespace accelerate::cli {

struct ScreenSize {
  std::size_t num_columns = 80;
  std::size_t num_rows = 24;
};

/// The action that a key requests.
enum class WatchKey {
  next_figure,
  previous_figure,
  zoom_in,
  zoom_out,
  smooth,
  log_axis,
  quit,
  none
};

/// Removes the key at the beginning of `input` and returns it. An incomplete
/// escape sequence is left, unless `is_all` says that nothing follows.
WatchKey take_key(std::string& input, bool is_all);

/// Draws runs as text: curves of one figure, the legend, ranks, and the keys.
class Dashboard {
 public:
  explicit Dashboard(const WatchedRuns& runs) : runs_(runs) {}

  void press(WatchKey key);

  struct Look {
    bool has_colors = false;
    bool has_keys = false;  ///< a last line that lists the keys
    double now = 0;         ///< seconds since 1970
  };
  /// Lines without line breaks: one per row of the screen, none wider than the
  /// screen.
  [[nodiscard]] std::vector<std::string> draw(ScreenSize size, Look look) const;

 private:
  struct Curve;

  [[nodiscard]] std::string figure() const;
  [[nodiscard]] std::vector<Curve> curves(
      const std::string& figure,
      std::size_t num_columns) const;
  [[nodiscard]] std::vector<std::string> plot(
      const std::vector<Curve>& curves,
      std::size_t num_columns,
      std::size_t num_rows,
      bool has_colors) const;
  [[nodiscard]] std::string title(double now) const;
  [[nodiscard]] std::vector<std::string> legend(
      const std::vector<Curve>& curves,
      bool has_colors,
      std::size_t most) const;
  [[nodiscard]] std::vector<std::string> rank_lines(std::size_t most) const;
  [[nodiscard]] std::vector<std::string> warning_lines(
      Look look,
      std::size_t most) const;

  const WatchedRuns& runs_;
  std::string chosen_;         // the figure, or empty for the first
  int zoom_ = 0;               // shows the last 1/2^zoom of the steps
  std::size_t smoothing_ = 0;  // an index into the levels
  bool is_log_ = false;
};

}  // namespace accelerate::cli
