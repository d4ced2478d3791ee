#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include <accelerate/world.h>

namespace accelerate::detail {

/// States in memory whose parts were kept by other machines, or with other
/// numbers of ranks, than now. From the remaining parts, every machine
/// assembles the whole state as its own checkpoint. Files that several parts
/// share are sent once, and only to machines that lack them.
///
/// Used by all ranks in the same order; only the first rank of each machine
/// touches files.
class WholeStates {
 public:
  /// `memory`: the directory in this machine's memory. `between`: a group of
  /// the first ranks of all machines; set only on them.
  WholeStates(
      World world,
      std::filesystem::path memory,
      std::optional<Group> between);

  /// The names of the states that can be made whole. Collective.
  [[nodiscard]] std::set<std::string> survey() const;
  /// Gives every machine the whole state of this name. Throws CheckpointError
  /// on all ranks if a machine cannot get it. Collective.
  void make(const std::string& name) const;
  /// The directory of this machine's whole states.
  [[nodiscard]] std::filesystem::path directory() const;
  /// Removes all states of this machine, whole or in parts, except this whole
  /// state and those below `kept`.
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
