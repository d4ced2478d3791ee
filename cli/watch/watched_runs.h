#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// The additions to a run since the last update.
struct RunChange {
  struct Figure {
    std::string name;
    /// Index of the first new point; 0 if earlier points changed as well,
    /// because a step was repeated.
    std::size_t begin = 0;
    bool is_reset = false;
  };

  std::size_t run = 0;  ///< its index
  bool is_new = false;
  std::vector<Figure> figures;
  bool has_events = false;
  bool has_system = false;
  bool has_ranks = false;
};

/// The runs below some paths, which grow in length and number. An index always
/// refers to the same run. Not thread-safe.
class WatchedRuns {
 public:
  /// Throws ConfigError if a path holds no run.
  explicit WatchedRuns(std::vector<std::string> paths);

  /// Reads additions, at most about 64 MiB per run. The run of a journal that
  /// can no longer be read stays as it was and has a problem(); if memory was
  /// too small for it, it is not read again. Failures of single runs do not
  /// throw.
  std::vector<RunChange> update();
  /// Whether the last update() left something unread.
  [[nodiscard]] bool has_more() const;

  [[nodiscard]] const std::vector<std::unique_ptr<RunRecord>>& runs() const {
    return runs_;
  }
  /// Sorted names of the figures of all runs.
  [[nodiscard]] std::vector<std::string> figure_names() const;

 private:
  void open_new_runs(const std::vector<RunPlace>& places);
  std::optional<RunChange> look(std::size_t index);

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<RunRecord>> runs_;
  std::set<std::size_t> given_up_;  // runs that are read no further
  std::size_t num_reported_ = 0;    // runs already reported by update()
};

}  // namespace accelerate::cli
