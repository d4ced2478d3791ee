#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <accelerate/world.h>

#include "parallel/shard/copy_stream.h"
#include "parallel/shard/shard_traffic.h"
#include "parallel/shard/unshard/block_pool.h"

namespace accelerate::detail {

/// Gathers the full parameters of one unit from device to device, in one start of
/// the transport: large ones in place, small ones in one pack. Nothing waits but
/// the current stream, in whose order memory is taken and given back.
class DeviceUnshard {
 public:
  /// `pool`: memory for parameters that travel in float8. `copies`: brings shards
  /// from host memory; must outlive the object.
  DeviceUnshard(std::shared_ptr<BlockPool> pool, const CopyStream& copies);
  DeviceUnshard(const DeviceUnshard&) = delete;
  DeviceUnshard& operator=(const DeviceUnshard&) = delete;
  ~DeviceUnshard();

  void start(
      const UnitShards& unit,
      const Group& group,
      ShardSource source,
      std::vector<at::Tensor> memory);
  std::vector<at::Tensor> finish(const UnitShards& unit);
  /// Has the host wait until no copy reads shards in its memory.
  void finish_copies();
  void abandon();

 private:
  struct Gather;

  void prepare_large(const ShardedParameter& parameter, std::size_t i);
  void prepare_small(const UnitShards& unit);
  /// Copies this rank's rows to where they are gathered.
  void copy_own(const at::Tensor& to, const at::Tensor& rows);

  std::shared_ptr<BlockPool> pool_;
  const CopyStream& copies_;
  std::unique_ptr<Gather> gather_;
  /// When the last copy from host memory ends.
  std::optional<c10::Event> copied_;
};

}  // namespace accelerate::detail
