#include "parallel/shard/device_traffic.h"

#include <utility>

#include <accelerate/error.h>

#include "comm/mesh.h"

namespace accelerate::detail {

namespace {

// A group for one model's reductions: models that share a backward may begin
// theirs in any order among each other.
Group group_of_its_own(const Mesh& mesh) {
  const Group& group = mesh.group(Axis::shard);
  return group.size() == 1 ? group
                           : mesh.world().new_group(group.world_ranks());
}

}  // namespace

DeviceShardTraffic::DeviceShardTraffic(
    const Mesh& mesh,
    Group reshard_group,
    std::shared_ptr<BlockPool> pool)
    : gather_group_(mesh.group(Axis::shard)),
      reduce_group_(group_of_its_own(mesh)),
      reshard_group_(std::move(reshard_group)),
      pool_(std::move(pool)),
      copies_(mesh.world().device()) {}

void DeviceShardTraffic::add_unit(const UnitShards& unit) {
  units_.push_back(
      std::unique_ptr<Unit>(new Unit{&unit, DeviceUnshard(pool_, copies_)}));
}

bool DeviceShardTraffic::is_sent_alone(
    const ShardedParameter& parameter) const {
  return !parameter.is_small();
}

void DeviceShardTraffic::start_unshard(
    const UnitShards& unit,
    ShardSource source,
    std::vector<at::Tensor> memory) {
  note_gather(unit.number);
  const Group& group =
      source == ShardSource::reshard_group ? reshard_group_ : gather_group_;
  state_of(unit).unshard.start(unit, group, source, std::move(memory));
}

std::vector<at::Tensor> DeviceShardTraffic::finish_unshard(
    const UnitShards& unit) {
  return state_of(unit).unshard.finish(unit);
}

void DeviceShardTraffic::before_reshard(const UnitShards& unit) {
  state_of(unit).unshard.finish_copies();
}

void DeviceShardTraffic::begin_forward(bool records) {
  notes_gathers_ = records;
  if (!records || !std::exchange(has_reduced_, false)) return;
  gathered_.clear();
  for (const auto& unit : units_) unit->was_gathered = unit->recurs = false;
}

// A backward goes through the operators of its forwards in reverse, so the
// gradients of a unit are complete once it is back at the unit's first use.
void DeviceShardTraffic::note_gather(std::size_t unit) {
  if (!notes_gathers_) return;
  Unit& state = *units_[unit];
  state.recurs = state.was_gathered;
  if (!std::exchange(state.was_gathered, true)) gathered_.push_back(unit);
}

void DeviceShardTraffic::begin_backward() {
  end_turns();
  notes_gathers_ = false;
  const auto add = [this](Unit& unit) {
    if (!unit.shards->trainable.empty()) add_turn(unit);
  };
  for (std::size_t i = gathered_.size(); i-- > 0;) add(*units_[gathered_[i]]);
  for (std::size_t i = units_.size(); i-- > 0;) {
    if (!units_[i]->was_gathered) add(*units_[i]);
  }
}

void DeviceShardTraffic::add_turn(Unit& unit) {
  unit.reductions.emplace_back(*unit.shards, reduce_group_);
  turns_.push_back({&unit, &unit.reductions.back()});
}

DeviceReduction& DeviceShardTraffic::reduction_of(const UnitShards& unit) {
  Unit& state = state_of(unit);
  if (state.reductions.empty() || state.reductions.back().is_taken())
    add_turn(state);
  return state.reductions.back();
}

void DeviceShardTraffic::take_gradient(
    const UnitShards& unit,
    std::size_t place) {
  reduction_of(unit).take(place);
}

void DeviceShardTraffic::start_reduce(const UnitShards&, std::size_t) {
  begin_what_is_due();
}

void DeviceShardTraffic::start_rest(const UnitShards& unit, std::uint64_t) {
  reduction_of(unit).take_rest();
  begin_what_is_due();
}

void DeviceShardTraffic::begin_what_is_due() {
  for (; turn_ < turns_.size(); ++turn_) {
    DeviceReduction& reduction = *turns_[turn_].reduction;
    while (reduction.can_begin()) {
      join_earlier();
      reduction.begin_next();
    }
    if (!reduction.has_begun_all()) return;
  }
}

// Bounds the memory of reductions in flight. Other ranks have begun these, or
// will before they need a gather that this rank begins later, because their
// backward is also past the unit, unless the unit recurs: ranks may use a
// parameter in different places then.
void DeviceShardTraffic::join_earlier() {
  for (std::size_t i = first_unjoined_; i <= turn_; ++i) {
    if (!turns_[i].unit->recurs) turns_[i].reduction->join();
  }
  first_unjoined_ = turn_;
}

void DeviceShardTraffic::end_backward() {
  if (turn_ != turns_.size())
    throw InternalError("[parallel] a reduction of gradients was not begun");
  // One is copied to the host while the means of the next are computed.
  DeviceReduction* before = nullptr;
  for (const auto& unit : units_) {
    for (DeviceReduction& reduction : unit->reductions) {
      reduction.begin_settling(copies_);
      if (before != nullptr) before->settle();
      before = &reduction;
    }
  }
  if (before != nullptr) before->settle();
  end_turns();
  has_reduced_ = true;
}

void DeviceShardTraffic::end_turns() {
  for (const auto& unit : units_) unit->reductions.clear();
  turns_.clear();
  turn_ = 0;
  first_unjoined_ = 0;
}

void DeviceShardTraffic::abandon(const UnitShards& unit) {
  state_of(unit).unshard.abandon();
  end_turns();
  has_reduced_ = true;
}

}  // namespace accelerate::detail
