#include "cli/runs/run_place.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <system_error>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

namespace fs = std::filesystem;
using detail::format;

// Directories of projects hold directories of runs.
constexpr int kMostLevels = 3;

bool is_run(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(directory / "journal", ignored);
}

void add_runs_below(
    const fs::path& directory,
    int levels,
    std::vector<fs::path>& found) {
  if (is_run(directory)) {
    found.push_back(directory);
    return;
  }
  if (levels == 0) return;
  std::vector<fs::path> inside;
  std::error_code problem;
  for (fs::directory_iterator entry(directory, problem), end;
       !problem && entry != end;
       entry.increment(problem)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) &&
        !entry->path().filename().string().starts_with('.'))
      inside.push_back(entry->path());
  }
  std::ranges::sort(inside);
  for (const fs::path& each : inside) add_runs_below(each, levels - 1, found);
}

// The last `num` directories of a path.
std::string ending(const fs::path& path, std::size_t num) {
  const std::vector<fs::path> parts(path.begin(), path.end());
  fs::path name;
  for (std::size_t i = parts.size() - std::min(num, parts.size());
       i < parts.size();
       ++i)
    name /= parts[i];
  return name.string();
}

std::vector<RunPlace> with_names(const std::vector<fs::path>& directories) {
  std::vector<RunPlace> places;
  for (const fs::path& directory : directories)
    places.push_back({ending(directory, 1), directory});
  for (std::size_t num = 2, longest = 0;; ++num) {
    std::map<std::string, int> uses;
    for (const RunPlace& place : places) ++uses[place.name];
    bool has_twins = false;
    for (RunPlace& place : places) {
      if (uses[place.name] < 2) continue;
      has_twins = true;
      place.name = ending(place.directory, num);
      longest = std::max<std::size_t>(
          longest,
          std::distance(place.directory.begin(), place.directory.end()));
    }
    if (!has_twins || num > longest) return places;
  }
}

std::vector<RunPlace> find_in(
    const std::vector<std::string>& paths,
    bool must) {
  std::vector<fs::path> directories;
  std::set<fs::path> seen;
  const std::vector<std::string> here{"."};
  for (const std::string& path : paths.empty() ? here : paths) {
    std::error_code problem;
    fs::path place = fs::canonical(path, problem);
    if (problem)
      throw ConfigError(
          format("{} cannot be opened: {}", path, problem.message()));
    // The path of the journal itself stands for its directory.
    if (fs::is_regular_file(place) && place.filename() == "journal")
      place = place.parent_path();
    std::vector<fs::path> found;
    add_runs_below(place, kMostLevels, found);
    if (found.empty() && must) {
      throw ConfigError(format(
          "no runs in {}; pass the directory of a run or of its project, which "
          "holds RUN/journal",
          path == "." ? place.string() : path));
    }
    for (fs::path& each : found) {
      if (seen.insert(each).second) directories.push_back(std::move(each));
    }
  }
  return with_names(directories);
}

}  // namespace

std::vector<RunPlace> find_runs(const std::vector<std::string>& paths) {
  return find_in(paths, true);
}

std::vector<RunPlace> find_runs_so_far(const std::vector<std::string>& paths) {
  return find_in(paths, false);
}

}  // namespace accelerate::cli
