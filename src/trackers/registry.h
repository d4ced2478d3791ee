#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/tracker.h>

#include "trackers/tracker_request.h"

namespace accelerate::detail {

/// A kind of tracker, known by name.
struct TrackerClass {
  std::string name;
  bool requires_logging_directory = false;
  /// Whether it calls the tool's own Python package.
  bool needs_python = false;
  std::function<std::shared_ptr<GeneralTracker>(const TrackerRequest&)> make;
};

/// The library's trackers in the order used by "all", then registered ones.
std::vector<TrackerClass> tracker_classes();
/// Nothing if no class has this name.
std::optional<TrackerClass> find_tracker_class(std::string_view name);

/// A tracker to be made, or one that the program made itself.
struct ChosenTracker {
  std::string name;
  std::shared_ptr<GeneralTracker> instance = nullptr;
};

/// Whether a class can be used on this machine.
using IsInstalled = std::function<bool(const TrackerClass&)>;

/// Resolves `log_with` as Accelerate does: "all" stands for every installed
/// class, and keeps what the program has made; each name appears once; those
/// that are not installed are left out and reported to `note`. Throws
/// ConfigError for an unknown name, and for a class that requires a directory
/// if `logging_dir` is empty.
std::vector<ChosenTracker> filter_trackers(
    const std::vector<LogWith>& log_with,
    const std::filesystem::path& logging_dir,
    const IsInstalled& is_installed,
    const std::function<void(const std::string&)>& note = {});

/// Wraps a tracker so that it only gets calls between a successful start() and
/// the first finish(): others throw ConfigError, or do nothing (flush() and
/// finish()). A start() that threw may be repeated.
std::unique_ptr<GeneralTracker> guard_tracker(
    std::unique_ptr<GeneralTracker> tracker);

}  // namespace accelerate::detail
