#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// What W&B logs in place of an image, a table or a figure: an object that
/// names files.
struct WandbMedia {
  nlohmann::ordered_json value;
  /// The files, below the directory that was given.
  std::vector<std::string> files;
};

// Each puts its files below `directory`, the "files" of a run. `name` is the
// name under which the value is logged, `step` its step.

/// `captions`: none, or one per image. Throws Error for another number.
WandbMedia write_wandb_images(
    const std::filesystem::path& directory,
    const std::string& name,
    std::int64_t step,
    const TrackedImages& images,
    const std::vector<std::string>& captions);

WandbMedia write_wandb_table(
    const std::filesystem::path& directory,
    const std::string& name,
    std::int64_t step,
    const TrackedTable& table);

WandbMedia write_wandb_html(
    const std::filesystem::path& directory,
    const std::string& name,
    std::int64_t step,
    const std::string& html);

/// Needs no file.
nlohmann::ordered_json wandb_histogram(const TrackedHistogram& histogram);

}  // namespace accelerate::detail
