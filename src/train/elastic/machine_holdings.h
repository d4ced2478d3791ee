#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/world.h>

#include "train/elastic/directory_moves.h"

namespace accelerate::detail {

/// The parts of states that machines hold in memory: each holds the part of
/// every state that its own ranks have, and a copy of the previous machine's
/// part, so that a machine may be lost with its memory. Only the first rank of
/// a machine touches files.
///
/// Used by all ranks in the same order, except for copy_all().
class MachineHoldings {
 public:
  /// `memory`: a directory in this machine's memory. Collective.
  MachineHoldings(const World& world, const std::filesystem::path& memory);

  /// Creates the directories. Throws ConfigError on all ranks if a machine
  /// cannot. Collective.
  void make_directories();
  /// Whether this is the first rank of its machine.
  [[nodiscard]] bool is_first() const { return world_.local_rank() == 0; }
  /// A group of the first ranks of all machines; set by make_directories(), only
  /// on them.
  [[nodiscard]] const std::optional<Group>& between() const { return between_; }
  /// This machine's directories: of all that it holds, and of its parts.
  [[nodiscard]] const std::filesystem::path& directory() const {
    return directory_;
  }
  [[nodiscard]] std::filesystem::path parts_directory() const;

  /// Finds what all machines hold, and removes what is incomplete. Collective.
  /// The functions below refer to what it found.
  void survey();
  /// The names of all parts and copies, which repeat.
  [[nodiscard]] std::vector<std::string> names() const;
  /// The machines whose part of the state is held neither by them nor as a copy.
  [[nodiscard]] std::vector<std::string> lost_parts(
      const std::string& name) const;
  /// Fetches the missing parts of a state from the machines that hold their
  /// copies, and returns which ("machine 0 from machine 1"). Throws
  /// CheckpointError on all ranks if one cannot be fetched. Collective.
  std::vector<std::string> fetch_parts(const std::string& name) const;
  /// Makes the missing copies of a state's parts; none without a name. Throws
  /// like fetch_parts(). Collective.
  void copy_missing(const std::string& name) const;
  /// Copies all parts of a state. Returns why that failed, or an empty string.
  /// For the first ranks, on any thread. Throws DistributedError.
  [[nodiscard]] std::string copy_all(const std::string& name) const;
  /// Removes this machine's part and copy of a state.
  void remove(const std::string& name) const;
  /// Removes this machine's parts and copies of all other states.
  void remove_others(const std::string& name) const;

 private:
  struct Holding {
    std::vector<std::string> parts;
    std::vector<std::string> copies;
  };

  [[nodiscard]] std::size_t num_machines() const { return firsts_.size(); }
  // The machine that holds the copy of this machine's part.
  [[nodiscard]] std::size_t holder_of(std::size_t machine) const {
    return (machine + 1) % num_machines();
  }
  [[nodiscard]] bool has_part(std::size_t machine, const std::string& name)
      const;
  [[nodiscard]] bool has_copy(std::size_t machine, const std::string& name)
      const;
  // Copies of the parts of `machines`, from each to its holder.
  [[nodiscard]] std::vector<DirectoryMove> copies_of(
      const std::string& name,
      const std::vector<std::size_t>& machines) const;
  void move(const std::vector<DirectoryMove>& moves, const std::string& what)
      const;

  World world_;
  std::filesystem::path memory_;
  std::filesystem::path directory_;
  std::vector<int> firsts_;  // by machine
  std::optional<Group> between_;
  std::vector<Holding> holdings_;  // by machine
};

}  // namespace accelerate::detail
