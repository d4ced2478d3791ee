#include "parallel/shard/shard_traffic.h"

#include "comm/group/group_impl.h"
#include "parallel/shard/device_traffic.h"
#include "parallel/shard/host_traffic.h"
#include "parallel/shard/shard.h"

namespace accelerate::detail {

namespace {

// Whether collectives go from device to device: not on the CPU, nor where the
// transport takes host memory only, or stages through it (Gloo; ranks without
// NCCL). The world is asked, of which a group may differ, since all ranks of a
// pipeline must reserve the same tags.
bool connects_devices(const World& world) {
  const c10::Device device = world.device();
  const std::shared_ptr<Connection>& connection =
      world.group().impl()->connection;
  return !device.is_cpu() && connection != nullptr &&
      connection->facts().has_device(device.type()) &&
      connection->facts().has_exchange;
}

}  // namespace

std::unique_ptr<ShardTraffic> make_shard_traffic(
    const Mesh& mesh,
    const Group& reshard_group,
    const std::shared_ptr<BlockPool>& pool) {
  if (connects_devices(mesh.world())) {
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
