#pragma once

#include <string>
#include <vector>

#include "comm/transport/shared_memory/memory/fabric.h"

namespace accelerate::detail {

/// All failures of this transport begin with it.
inline constexpr const char* kSharedMemoryMark = "[shared memory] ";

/// Whether the other ranks of a connection are still there.
class Peers {
 public:
  /// `world_ranks`: the ranks' numbers in the world, for messages.
  explicit Peers(std::vector<int> world_ranks);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  ~Peers();

  /// Called when all ranks have written their processes to their pages.
  void watch(const Fabric& fabric);
  /// Those whose processes have ended, or which have closed their connections.
  [[nodiscard]] std::vector<int> find_gone(const Fabric& fabric) const;
  /// Whether some have closed their connections.
  [[nodiscard]] static bool have_left(const Fabric& fabric);
  /// Why such a rank is gone: its last output, if it had any.
  [[nodiscard]] std::string describe_gone(const Fabric& fabric, int rank) const;
  /// Its number in the world.
  [[nodiscard]] std::string name_of(int rank) const;

 private:
  std::vector<int> world_ranks_;
  // A descriptor per rank that becomes readable when its process ends; -1 for
  // ranks of this process.
  std::vector<int> descriptors_;
};

}  // namespace accelerate::detail
