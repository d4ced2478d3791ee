#pragma once

#include <string>
#include <vector>

#include "comm/transport/shared_memory/memory/fabric.h"

namespace accelerate::detail {

/// Prefix of all failures of this transport.
inline constexpr const char* kSharedMemoryMark = "[shared memory] ";

/// Tells whether the other ranks of a connection are still alive.
class Peers {
 public:
  /// `world_ranks`: the ranks' numbers in the world, for error messages.
  explicit Peers(std::vector<int> world_ranks);
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  ~Peers();

  /// Called when all ranks have written their processes to their pages.
  void watch(const Fabric& fabric);
  /// Returns the ranks whose processes have ended or that have closed their
  /// connections.
  [[nodiscard]] std::vector<int> find_gone(const Fabric& fabric) const;
  /// Whether any rank has closed its connection.
  [[nodiscard]] static bool have_left(const Fabric& fabric);
  /// Why such a rank is gone: its last output, if any.
  [[nodiscard]] std::string describe_gone(const Fabric& fabric, int rank) const;
  /// The rank's number in the world, as text.
  [[nodiscard]] std::string name_of(int rank) const;

 private:
  std::vector<int> world_ranks_;
  // A descriptor per rank that becomes readable when its process ends; -1 for
  // ranks of this process.
  std::vector<int> descriptors_;
};

}  // namespace accelerate::detail
