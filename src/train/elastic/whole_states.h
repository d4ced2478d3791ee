#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include <accelerate/world.h>

namespace accelerate::detail {

/// States in memory whose parts machines kept that were other machines, or other
/// numbers of ranks, than now: from the parts that are left, every machine makes
/// itself the whole state, as a checkpoint of its own. Files that several parts
/// have in common travel once, and only to machines that lack them.
///
/// Used by all ranks in the same order; only the first rank of each machine
/// touches files.
class WholeStates {
 public:
  /// `memory`: the directory in the memory of this machine. `between`: the first
  /// ranks of all machines, on these alone.
  WholeStates(
      World world,
      std::filesystem::path memory,
      std::optional<Group> between);

  /// The names of the states that can be made whole. Collective.
  [[nodiscard]] std::set<std::string> survey() const;
  /// Gives every machine the whole state of this name. Throws CheckpointError on
  /// all ranks if one cannot have it. Collective.
  void make(const std::string& name) const;
  /// The directory of whole states on this machine.
  [[nodiscard]] std::filesystem::path directory() const;
  /// Removes all states of this machine, whole or in parts, but this whole one
  /// and those below `kept`.
  void remove_others(
      const std::string& name,
      const std::filesystem::path& kept = {}) const;

 private:
  void make_on_first_rank(const std::string& name) const;

  World world_;
  std::filesystem::path memory_;
  std::optional<Group> between_;
};

}  // namespace accelerate::detail
