#pragma once

#include <cstdint>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>
#include <accelerate/world.h>

#include "comm/group/begun_exchange.h"
#include "pipeline/device_edges.h"
#include "pipeline/message_order.h"
#include "planning/pipeline/schedule.h"

namespace accelerate::detail {

/// Thrown if a message to or from a rank of the pipeline did not arrive.
struct LostPeer : std::runtime_error {
  LostPeer(int peer_rank, const std::string& text)
      : std::runtime_error(text), peer(peer_rank) {}

  int peer;  ///< its rank in the pipeline
};

/// Moves tensors between the ranks of a pipeline: in host memory by tags; from
/// device to device over the edges, whose messages are matched by their order.
/// Undefined tensors do not travel. Used by one thread.
class StageMessenger {
 public:
  /// `places`: those of all schedules. `trains`: whether gradients travel.
  StageMessenger(
      Group&& group,
      at::Device device,
      const PipelineStagePlaces& places,
      bool trains);

  [[nodiscard]] int rank() const { return group_.rank(); }
  /// The ranks that send to this one over an edge.
  [[nodiscard]] std::vector<int> edge_senders() const;
  /// Where tensors must be to be received; a device only over edges.
  [[nodiscard]] at::Device device_for(const at::TensorOptions& options) const {
    return edges_.empty() ? options.device() : device_;
  }

  /// Begins a step; its messages do not mix with the previous step's.
  void begin_step(int num_micro_batches);
  void send(const StageMessage& message, int peer, PipelineTensors tensors);
  /// Tensors must stay as they are until the end.
  [[nodiscard]] BegunExchange receive(
      const StageMessage& message,
      int peer,
      const PipelineTensors& tensors) const;

  /// Sends numbers about a message, which the host of the other rank waits for.
  void send_numbers(
      const StageMessage& message,
      int peer,
      const std::vector<std::int64_t>& numbers);
  [[nodiscard]] std::vector<std::int64_t> receive_numbers(
      const StageMessage& message,
      int peer) const;

  /// Gives all ranks the values of `src`, in place.
  void broadcast(const at::Tensor& tensor, int src);

  /// Waits until all sends have completed. Between devices, where nothing else
  /// shows a host what happens to other ranks, it also waits until all hosts
  /// have come here.
  void end_step();
  /// Ends what is under way, on other ranks too.
  void abandon() noexcept;

 private:
  [[nodiscard]] int tag_of(const StageMessage& message) const;
  void keep(BegunExchange&& leaving);
  void meet_hosts();

  Group group_;
  at::Device device_;
  DeviceEdges edges_;
  int num_micro_batches_ = 1;
  std::int64_t num_steps_ = 0;
  std::deque<BegunExchange> leaving_;
};

}  // namespace accelerate::detail
