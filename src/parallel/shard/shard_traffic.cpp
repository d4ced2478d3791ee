#include "parallel/shard/shard_traffic.h"

#include "comm/group/begun_exchange.h"
#include "parallel/shard/device_traffic.h"
#include "parallel/shard/host_traffic.h"
#include "parallel/shard/shard.h"

namespace accelerate::detail {

std::unique_ptr<ShardTraffic> make_shard_traffic(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool) {
  // The world is asked, since all ranks of a pipeline must reserve the same tags.
  const World& world = mesh.world();
  if (connects_devices(world.group(), world.device())) {
    return std::make_unique<DeviceShardTraffic>(mesh, reshard_group, pool);
  }
  return make_host_traffic(mesh, reshard_group, pool);
}

std::unique_ptr<ShardTraffic> make_host_traffic(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool) {
  return std::make_unique<HostShardTraffic>(mesh, reshard_group, pool);
}

}  // namespace accelerate::detail
