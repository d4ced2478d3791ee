#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <accelerate/checkpoint.h>

namespace accelerate::detail {

struct Checkpoints;

/// Where a save goes, and what it does to others.
struct SaveTarget {
  std::filesystem::path path;
  std::int64_t iteration = 0;
  /// Automatic checkpoints that go once this one is complete.
  std::vector<std::filesystem::path> deleted = {};
  /// Another save is still being written.
  bool is_skipped = false;
};

/// Chooses on rank 0, should others see the directory differently; `deleted` is
/// known there only. Throws ConfigError on all ranks if there is nowhere to
/// save.
SaveTarget agree_on_target(
    Checkpoints& checkpoints,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options);

/// The automatic checkpoints beside `path` that go when one is saved there.
/// Throws ConfigError if it must not be.
std::vector<std::filesystem::path> deleted_by_saving(
    const ProjectConfiguration& project,
    const std::filesystem::path& path);

}  // namespace accelerate::detail
