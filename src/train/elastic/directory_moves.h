#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace accelerate {
class Group;
}

namespace accelerate::detail {

/// A directory that goes from one rank of a group to another one's disk or
/// memory.
struct DirectoryMove {
  int from = 0;
  int to = 0;
  /// On the rank `from`.
  std::filesystem::path source;
  /// On the rank `to`. Replaced if it exists; it has its name once everything
  /// has arrived.
  std::filesystem::path target;
  /// The files below `source` that go; nothing: all.
  std::optional<std::vector<std::string>> files = std::nullopt;
};

/// Makes all `moves` at once, of which every rank gives the same, at most one
/// between two ranks in one direction. Returns why one in which this rank takes
/// part failed, or nothing; the others are made nevertheless. Collective. Throws
/// DistributedError as the group's collectives do.
std::string move_directories(
    const Group& group,
    const std::vector<DirectoryMove>& moves);

}  // namespace accelerate::detail
