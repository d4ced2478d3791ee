#include "parallel/shard/host_traffic.h"

#include <utility>

#include "comm/mesh.h"

namespace accelerate::detail {

HostShardTraffic::HostShardTraffic(
    const Mesh& mesh,
    Group reshard_group,
    std::shared_ptr<BlockPool> pool)
    : mesh_(mesh),
      gather_group_(mesh.group(Axis::shard)),
      reduce_group_(dedicated_group(mesh, Axis::shard, "gradients")),
      reshard_group_(std::move(reshard_group)),
      pool_(
          mesh.world().device().is_cpu() ? std::move(pool)
                                         : std::make_shared<BlockPool>()) {}

void HostShardTraffic::add_unit(const UnitShards& unit) {
  const int first =
      reserve_tags(mesh_, HostTags::count(unit.parameters.size()));
  units_.push_back(std::unique_ptr<Unit>(new Unit{
      HostUnshard(HostTags(first, HostTags::Kind::gather), pool_),
      HostReduction(
          reduce_group_, HostTags(first, HostTags::Kind::reduce), pool_)}));
}

void HostShardTraffic::keep_memory(std::int64_t up_to_bytes) {
  pool_->keep_up_to(up_to_bytes);
}

bool HostShardTraffic::is_sent_alone(const ShardedParameter& parameter) const {
  return !parameter.is_small();
}

void HostShardTraffic::start_unshard(
    const UnitShards& unit,
    ShardSource source,
    std::vector<at::Tensor> memory) {
  const Group& group =
      source == ShardSource::reshard_group ? reshard_group_ : gather_group_;
  state_of(unit).unshard.start(unit, group, source, std::move(memory));
}

std::vector<at::Tensor> HostShardTraffic::finish_unshard(
    const UnitShards& unit) {
  return state_of(unit).unshard.finish(unit);
}

void HostShardTraffic::before_reshard(const UnitShards& unit) {
  state_of(unit).unshard.finish_copies();
}

bool HostShardTraffic::stages_gradients() const {
  return !mesh_.world().device().is_cpu();
}

void HostShardTraffic::take_gradient(
    const UnitShards& unit,
    std::size_t place) {
  state_of(unit).reduction.take(unit, place);
}

void HostShardTraffic::start_reduce(const UnitShards& unit, std::size_t place) {
  state_of(unit).reduction.send(unit, place);
}

void HostShardTraffic::finish_reduce(
    const UnitShards& unit,
    std::size_t place) {
  state_of(unit).reduction.finish(unit, place);
}

void HostShardTraffic::start_rest(
    const UnitShards& unit,
    std::uint64_t order_hash) {
  state_of(unit).reduction.send_rest(unit, order_hash);
}

bool HostShardTraffic::finish_rest(const UnitShards& unit) {
  return state_of(unit).reduction.finish_rest(unit);
}

void HostShardTraffic::abandon(const UnitShards& unit) {
  state_of(unit).unshard.abandon();
  state_of(unit).reduction.abandon();
}

}  // namespace accelerate::detail
