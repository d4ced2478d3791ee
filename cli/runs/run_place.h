#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accelerate::cli {

/// Where a run's journal is, and how the run is called among others.
struct RunPlace {
  std::string name;
  std::filesystem::path directory;

  [[nodiscard]] std::filesystem::path journal() const {
    return directory / "journal";
  }
  bool operator==(const RunPlace&) const = default;
};

/// The runs that `paths` are or hold, in the order of `paths` and then by name:
/// a run's directory, a project's (`PROJECT/RUN/journal`), or one of projects.
/// No path means the current directory. A run that several paths lead to is
/// there once. Names are unique: the directory's, with those around it where
/// needed. Throws ConfigError for a path that holds no run.
std::vector<RunPlace> find_runs(const std::vector<std::string>& paths);

/// As find_runs(), but a path may still be empty of runs.
std::vector<RunPlace> find_runs_so_far(const std::vector<std::string>& paths);

}  // namespace accelerate::cli
