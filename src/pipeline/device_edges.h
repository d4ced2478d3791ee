#pragma once

#include <map>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "pipeline/message_order.h"

namespace accelerate::detail {

/// The edges of a pipeline whose ranks compute on devices: for each, a group of
/// its two ranks, whose messages go from device to device on a stream that
/// carries nothing else. No edges if the transport of `ranks` connects no
/// devices.
class DeviceEdges {
 public:
  /// Connects this rank's edges of `all`, so that no step has to: collective
  /// among `ranks`.
  DeviceEdges(
      const Group& ranks,
      at::Device device,
      const std::set<StageEdge>& all);

  [[nodiscard]] bool empty() const { return groups_.empty(); }
  [[nodiscard]] const std::map<StageEdge, Group>& groups() const {
    return groups_;
  }
  [[nodiscard]] const Group& group_of(const StageEdge& edge) const {
    return groups_.at(edge);
  }
  /// Ends what is under way, on both ends of each edge.
  void abort() noexcept;

 private:
  std::map<StageEdge, Group> groups_;
};

/// A rank's place in an edge's group.
inline constexpr int kEdgeSender = 0;
inline constexpr int kEdgeReceiver = 1;

}  // namespace accelerate::detail
