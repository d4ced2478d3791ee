#include "parallel/shard/shard_unit.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

// Gives the shard, and its copy in the dtype of computation, other values.
void assign(const ShardedParameter& parameter, const at::Tensor& values) {
  const HeldTensors held({parameter.local, parameter.rows}, DiskUse::replace);
  parameter.local.detach().copy_(values);
  if (parameter.rows.defined()) parameter.rows.copy_(parameter.local.detach());
}

}  // namespace

ShardUnit::ShardUnit(
    UnitShards shards,
    ShardPlace place,
    ShardTraffic& traffic,
    std::shared_ptr<BlockPool> pool)
    : shards_(std::move(shards)),
      place_(place),
      traffic_(traffic),
      pool_(std::move(pool)) {
  for (std::size_t i = 0; i < shards_.parameters.size(); ++i) {
    ShardedParameter& parameter = shards_.parameters[i];
    if (parameter.full.requires_grad() && !parameter.is_elsewhere)
      shards_.trainable.push_back(i);
    parameter.reshard_group_begins =
        row_begins(parameter.full.size(0), place_.reshard_group_size);
  }
  traffic_.add_unit(shards_);
}

std::int64_t ShardUnit::full_bytes() const {
  std::int64_t bytes = 0;
  for (const ShardedParameter& parameter : shards_.parameters)
    bytes += static_cast<std::int64_t>(parameter.full.nbytes());
  return bytes;
}

void ShardUnit::start_gather() {
  if (state_ != State::sharded) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> memory;
  for (ShardedParameter& parameter : shards_.parameters)
    memory.push_back(memory_for(parameter));
  state_ = State::gathering;
  const ShardSource source = is_in_reshard_group_ ? ShardSource::reshard_group
                                                  : ShardSource::all_ranks;
  std::vector<at::Tensor> read;
  bool is_on_device = false;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (!memory[i].defined()) continue;
    is_on_device = is_on_device || !memory[i].is_cpu();
    read.push_back(
        shards_.parameters[i].own_rows_in(source, memory[i].scalar_type()));
  }
  read_by_gather_.emplace(read);
  traffic_.start_unshard(shards_, source, std::move(memory));
  // A device copies them later.
  if (!is_on_device) read_by_gather_.reset();
}

void ShardUnit::begin_fetch() const {
  if (state_ != State::sharded || is_in_reshard_group_) return;
  std::vector<at::Tensor> read;
  for (const ShardedParameter& parameter : shards_.parameters) {
    read.push_back(parameter.own_rows_in(
        ShardSource::all_ranks, parameter.full.scalar_type()));
  }
  detail::begin_fetch(read);
}

at::Tensor ShardUnit::memory_for(ShardedParameter& parameter) {
  if (parameter.precise) return parameter.precise->values();
  const auto options = parameter.full.options().requires_grad(false);
  if (is_open_ && parameter.is_rounded_copy()) {
    return pool_->take(
        parameter.full.sizes(), options.dtype(parameter.local.dtype()));
  }
  // The parameter keeps its memory and receives the other ranks' rows.
  if (!parameter.gate) return parameter.full.detach();
  // Only other parameters of the unit were resharded.
  if (parameter.gate->is_filled()) return {};
  parameter.is_rounded = parameter.travels_in_float8();
  return pool_->take(parameter.full.sizes(), options);
}

void ShardUnit::finish_gather() {
  if (state_ != State::gathering) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> memory = traffic_.finish_unshard(shards_);
  for (std::size_t i = 0; i < memory.size(); ++i) {
    ShardedParameter& parameter = shards_.parameters[i];
    if (is_open_ && parameter.is_rounded_copy()) {
      if (!parameter.precise) {
        parameter.precise =
            std::make_unique<PreciseView>(parameter.full, memory[i]);
      }
    } else if (parameter.gate && memory[i].defined()) {
      parameter.gate->fill(memory[i]);
    }
  }
  state_ = State::full;
}

void ShardUnit::free_memory(ShardedParameter& parameter) {
  pool_->give(parameter.gate->release());
}

void ShardUnit::reshard(bool to_reshard_group) {
  finish_gather();
  const at::NoGradGuard no_grad;
  traffic_.before_reshard(shards_);
  read_by_gather_.reset();
  const bool keeps = to_reshard_group && place_.reshard_group_size > 1;
  is_in_reshard_group_ = keeps && (is_unsharded() || is_in_reshard_group_);
  for (ShardedParameter& parameter : shards_.parameters) {
    if (!keeps) parameter.kept_rows.reset();
    if (!parameter.gate || !parameter.gate->is_filled()) continue;
    if (keeps && !parameter.kept_rows.defined()) {
      parameter.kept_rows = rows_between(
                                parameter.full.detach(),
                                parameter.reshard_group_begins,
                                place_.reshard_group_rank)
                                .clone();
    }
    free_memory(parameter);
  }
  state_ = State::sharded;
}

void ShardUnit::reshard_parameter(std::size_t i) {
  ShardedParameter& parameter = shards_.parameters[i];
  if (state_ == State::gathering || !parameter.gate ||
      !parameter.gate->is_filled() || !traffic_.is_sent_alone(parameter)) {
    return;
  }
  free_memory(parameter);
  state_ = State::sharded;
}

void ShardUnit::start_open() {
  const bool has_rounded = std::any_of(
      shards_.parameters.begin(),
      shards_.parameters.end(),
      [](const ShardedParameter& parameter) {
        return parameter.is_rounded_copy();
      });
  // Parameters that are already full are rounded.
  if (has_rounded) reshard();
  is_open_ = true;
  start_gather();
}

void ShardUnit::forget_changes() {
  for (ShardedParameter& parameter : shards_.parameters) {
    if (parameter.precise) parameter.precise->forget_changes();
    parameter.version_when_opened = parameter.full._version();
  }
}

void ShardUnit::begin_forward() {
  for (const ShardedParameter& parameter : shards_.parameters) {
    if (parameter.precise) parameter.precise->begin_forward();
  }
}

void ShardUnit::end_forward() {
  for (const ShardedParameter& parameter : shards_.parameters) {
    if (parameter.precise) parameter.precise->end_forward();
  }
}

void ShardUnit::close() {
  const at::NoGradGuard no_grad;
  is_open_ = false;
  for (ShardedParameter& parameter : shards_.parameters) {
    if (parameter.precise) {
      hide_precise(parameter);
    } else {
      keep_changes(parameter);
    }
  }
}

void ShardUnit::keep_changes(const ShardedParameter& parameter) const {
  const at::Tensor own =
      parameter.rows_of(parameter.full.detach(), place_.rank);
  // Not is_alias_of(), which fails for tensors without memory.
  if (own.storage().unsafeGetStorageImpl() ==
      parameter.local.storage().unsafeGetStorageImpl()) {
    return;
  }
  // If the shard is more precise, it is only overwritten after a real change.
  if (!parameter.is_rounded ||
      parameter.full._version() != parameter.version_when_opened) {
    assign(parameter, own);
  }
}

void ShardUnit::hide_precise(ShardedParameter& parameter) {
  const bool is_changed = parameter.precise->is_changed();
  parameter.precise->hide();
  at::Tensor values = parameter.precise->values();
  parameter.precise.reset();
  if (is_changed) {
    assign(parameter, parameter.rows_of(values, place_.rank));
    if (!parameter.gate) parameter.full.detach().copy_(values);
  }
  pool_->give(std::move(values));
}

void ShardUnit::note_memory() {
  for (ShardedParameter& parameter : shards_.parameters) {
    if (!parameter.gate) parameter.memory = parameter.full.storage().data();
  }
}

bool ShardUnit::has_gradient() const {
  return std::any_of(
      shards_.trainable.begin(), shards_.trainable.end(), [&](std::size_t i) {
        return shards_.parameters[i].full.grad().defined();
      });
}

void ShardUnit::abandon() {
  const at::NoGradGuard no_grad;
  traffic_.abandon(shards_);
  read_by_gather_.reset();
  const bool is_gated = std::any_of(
      shards_.parameters.begin(),
      shards_.parameters.end(),
      [](const ShardedParameter& parameter) {
        return parameter.gate != nullptr;
      });
  if (!is_gated) {
    if (state_ == State::gathering) state_ = State::sharded;
    return;
  }
  for (ShardedParameter& parameter : shards_.parameters) {
    if (parameter.gate) parameter.gate->release();
    parameter.kept_rows.reset();
  }
  state_ = State::sharded;
  is_in_reshard_group_ = false;
}

}  // namespace accelerate::detail
