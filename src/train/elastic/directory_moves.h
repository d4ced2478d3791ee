#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace accelerate {
class Group;
}

namespace accelerate::detail {

/// A directory that moves from one rank of a group to the disk or memory of
/// another.
struct DirectoryMove {
  int from = 0;
  int to = 0;
  /// Path on the rank `from`.
  std::filesystem::path source;
  /// Path on the rank `to`. Replaced if it exists; has its name only once
  /// everything has arrived.
  std::filesystem::path target;
  /// The files below `source` to move; unset: all.
  std::optional<std::vector<std::string>> files = std::nullopt;
};

/// Makes all `moves` at once. Every rank passes the same moves, at most one
/// between two ranks in one direction. Returns why a move in which this rank
/// takes part failed, or an empty string; the others are made nevertheless.
/// Collective. Throws DistributedError as the group's collectives do.
std::string move_directories(
    const Group& group,
    const std::vector<DirectoryMove>& moves);

}  // namespace accelerate::detail
