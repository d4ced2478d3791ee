#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cli/runs/run_record.h"

namespace accelerate::cli {

/// What a run has got since it was last looked at.
struct RunChange {
  struct Figure {
    std::string name;
    /// The first new point; 0 if the points before it are others, too, since a
    /// step was repeated.
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

/// The runs below some paths, which grow, and become more. An index always
/// means the same run. Not thread-safe.
class WatchedRuns {
 public:
  /// Throws ConfigError if a path holds no run.
  explicit WatchedRuns(std::vector<std::string> paths);

  /// Reads what has been added. A journal that cannot be read any more stays as
  /// it was.
  std::vector<RunChange> update();

  [[nodiscard]] const std::vector<std::unique_ptr<RunRecord>>& runs() const {
    return runs_;
  }
  /// Names of figures of any of the runs, sorted.
  [[nodiscard]] std::vector<std::string> figure_names() const;

 private:
  void open_new_runs(const std::vector<RunPlace>& places);

  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<RunRecord>> runs_;
  std::size_t num_reported_ = 0;  // runs that an update() has told of
};

}  // namespace accelerate::cli
