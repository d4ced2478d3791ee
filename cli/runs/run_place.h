#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accelerate::cli {

/// Where a run's journal is, and the run's name among others.
struct RunPlace {
  std::string name;
  std::filesystem::path directory;

  [[nodiscard]] std::filesystem::path journal() const {
    return directory / "journal";
  }
  bool operator==(const RunPlace&) const = default;
};

/// The runs that `paths` name or contain, in the order of `paths` and then by
/// name: a path is a run's directory, a project's (`PROJECT/RUN/journal`), or a
/// directory of projects. No path means the current directory. A run reached
/// through several paths appears once. Names are unique: the directory's, with
/// parent directories where needed. Throws ConfigError for a path that holds no
/// run.
std::vector<RunPlace> find_runs(const std::vector<std::string>& paths);

/// Finds runs as find_runs() does, but a path may hold no runs yet.
std::vector<RunPlace> find_runs_so_far(const std::vector<std::string>& paths);

}  // namespace accelerate::cli
