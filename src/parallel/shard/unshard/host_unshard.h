#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <accelerate/world.h>

#include "parallel/shard/host_messages.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/unshard/block_pool.h"

namespace accelerate::detail {

/// Gathers the full parameters of one unit, by messages between hosts. Large
/// parameters are received in place; small ones share a message. Copies to a
/// device are queued on its current stream.
class HostUnshard {
 public:
  HostUnshard(HostTags tags, std::shared_ptr<BlockPool> pool);
  HostUnshard(const HostUnshard&) = delete;
  HostUnshard& operator=(const HostUnshard&) = delete;
  ~HostUnshard();

  void start(
      const UnitShards& unit,
      const Group& group,
      ShardSource source,
      std::vector<at::Tensor> memory);
  std::vector<at::Tensor> finish(const UnitShards& unit);
  /// Waits until no device copies from host memory.
  void finish_copies();
  void abandon();

 private:
  struct Gather;

  [[nodiscard]] at::Tensor host_memory(
      const at::Tensor& memory,
      at::ScalarType dtype) const;
  void unpack(const UnitShards& unit);
  /// Decodes values that were sent in float8 into parameters in host memory.
  void restore();
  void queue_copies();

  HostTags tags_;
  std::shared_ptr<BlockPool> pool_;
  std::uint64_t num_gathers_ = 0;
  std::uint64_t num_reshard_group_gathers_ = 0;
  std::unique_ptr<Gather> gather_;
  /// Host memory that a device may still be copying from, until `copied_`.
  std::vector<at::Tensor> pending_copies_;
  std::optional<c10::Event> copied_;
};

}  // namespace accelerate::detail
