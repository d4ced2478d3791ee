#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// What W&B logs in place of an image, a table or a figure: an object that
/// refers to files.
struct WandbMedia {
  nlohmann::ordered_json value;
  /// The files, relative to the given directory.
  std::vector<std::string> files;
};

// Each function writes its files below `directory`, the "files" of a run.
// `name` is the key under which the value is logged, `step` its step.

/// `captions`: none, or one per image. Throws Error for any other number.
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

/// Returns W&B's object for a histogram, which needs no file.
nlohmann::ordered_json wandb_histogram(const TrackedHistogram& histogram);

}  // namespace accelerate::detail
