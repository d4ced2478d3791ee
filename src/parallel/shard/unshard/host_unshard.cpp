#include "parallel/shard/unshard/host_unshard.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "base/text/text.h"
#include "comm/group/begun_exchange.h"
#include "parallel/shard/copy_event.h"
#include "parallel/shard/float8_gather.h"

namespace accelerate::detail {

namespace {

struct UnitMessages {
  // This rank's piece to the others, and theirs.
  template <class PieceOf>
  void add(const Group& group, int tag, PieceOf&& piece_of) {
    for (const int peer : peers_of(group)) {
      receives.push_back({piece_of(peer), peer, tag});
      sends.push_back({piece_of(group.rank()), peer, tag});
    }
  }

  std::vector<PeerMessage> sends, receives;
};

}  // namespace

struct HostUnshard::Gather {
  BegunExchange exchange;
  Group group;
  ShardSource source;
  std::vector<at::Tensor> memory;
  /// Host memory to receive into: `memory` itself, or memory copied to it
  /// later. Bytes for a parameter sent in float8.
  std::vector<at::Tensor> on_host = {};
  /// The scales of parameters sent in float8; undefined for others.
  std::vector<at::Tensor> scales = {};
  /// Bytes of the small parameters, one tensor per rank.
  std::vector<at::Tensor> packs = {};
};

HostUnshard::HostUnshard(HostTags tags, std::shared_ptr<BlockPool> pool)
    : tags_(tags), pool_(std::move(pool)) {}

HostUnshard::~HostUnshard() = default;

void HostUnshard::start(
    const UnitShards& unit,
    const Group& group,
    ShardSource source,
    std::vector<at::Tensor> memory) {
  gather_ =
      std::unique_ptr<Gather>(new Gather{{}, group, source, std::move(memory)});
  const std::uint64_t round = source == ShardSource::reshard_group
      ? num_reshard_group_gathers_++
      : num_gathers_++;
  UnitMessages messages;
  std::vector<std::vector<at::Tensor>> small_rows(
      static_cast<std::size_t>(group.size()));
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    const ShardedParameter& parameter = unit.parameters[i];
    gather_->scales.emplace_back();
    if (!gather_->memory[i].defined()) {
      gather_->on_host.emplace_back();
      continue;
    }
    if (parameter.travels_in_float8())
      gather_->scales.back() = *parameter.gathered_scale;
    const at::Tensor& scale = gather_->scales.back();
    const at::Tensor on_host = host_memory(
        gather_->memory[i],
        scale.defined() ? at::kByte : gather_->memory[i].scalar_type());
    const auto& begins = parameter.begins_in(gather_->source);
    const at::Tensor own = rows_between(on_host, begins, group.rank());
    const at::Tensor& kept =
        parameter.own_rows_in(source, gather_->memory[i].scalar_type());
    if (scale.defined()) {
      own.copy_(float8_bytes(kept, scale));
    } else if (!own.is_alias_of(kept)) {
      own.copy_(kept);
    }
    if (parameter.is_small()) {
      for (int rank = 0; rank < group.size(); ++rank) {
        small_rows[static_cast<std::size_t>(rank)].push_back(
            rows_between(on_host, begins, rank).reshape(-1).view(at::kByte));
      }
    } else {
      messages.add(group, tags_.tag(i, round), [&](int rank) {
        return rows_between(on_host, begins, rank);
      });
    }
    gather_->on_host.push_back(on_host);
  }
  for (const auto& rows : small_rows) {
    gather_->packs.push_back(
        rows.empty() ? at::empty({0}, at::kByte) : at::cat(rows));
  }
  messages.add(group, tags_.tag(unit.parameters.size(), round), [&](int rank) {
    return gather_->packs[static_cast<std::size_t>(rank)];
  });
  gather_->exchange = BegunExchange::messages(
      group,
      format("gathering the parameters of {}", unit.name),
      std::move(messages.sends),
      std::move(messages.receives));
}

std::vector<at::Tensor> HostUnshard::finish(const UnitShards& unit) {
  gather_->exchange.wait();
  unpack(unit);
  restore();
  queue_copies();
  std::vector<at::Tensor> memory = std::move(gather_->memory);
  gather_.reset();
  return memory;
}

void HostUnshard::unpack(const UnitShards& unit) {
  const Group& group = gather_->group;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
      const ShardedParameter& parameter = unit.parameters[i];
      if (!parameter.is_small() || !gather_->on_host[i].defined()) continue;
      const at::Tensor rows =
          rows_between(
              gather_->on_host[i], parameter.begins_in(gather_->source), rank)
              .reshape(-1);
      const auto size = static_cast<std::int64_t>(rows.nbytes());
      rows.view(at::kByte).copy_(
          gather_->packs[static_cast<std::size_t>(rank)].narrow(0, at, size));
      at += size;
    }
  }
}

at::Tensor HostUnshard::host_memory(
    const at::Tensor& memory,
    at::ScalarType dtype) const {
  if (!memory.is_cpu()) return take_pinned(*pool_, memory.sizes(), dtype);
  return memory.scalar_type() == dtype
      ? memory
      : pool_->take(memory.sizes(), at::TensorOptions(dtype));
}

void HostUnshard::restore() {
  for (std::size_t i = 0; i < gather_->memory.size(); ++i) {
    const at::Tensor& memory = gather_->memory[i];
    if (!gather_->scales[i].defined() || !memory.is_cpu()) continue;
    memory.copy_(float8_values(gather_->on_host[i], gather_->scales[i]));
    pool_->give(std::exchange(gather_->on_host[i], {}));
  }
}

void HostUnshard::queue_copies() {
  finish_copies();
  c10::Device device = at::kCPU;
  for (std::size_t i = 0; i < gather_->memory.size(); ++i) {
    const at::Tensor& memory = gather_->memory[i];
    if (!memory.defined() || memory.is_cpu()) continue;
    device = memory.device();
    const at::Tensor& on_host = gather_->on_host[i];
    if (gather_->scales[i].defined()) {
      memory.copy_(float8_values(
          on_host.to(device, /*non_blocking=*/true), gather_->scales[i]));
    } else {
      memory.copy_(on_host, /*non_blocking=*/true);
    }
    pending_copies_.push_back(std::move(gather_->on_host[i]));
  }
  if (pending_copies_.empty()) return;
  copied_ = event_after_copies(device);
}

void HostUnshard::finish_copies() {
  if (!copied_) return;
  copied_->synchronize();
  copied_.reset();
  for (at::Tensor& memory : pending_copies_) pool_->give(std::move(memory));
  pending_copies_.clear();
}

void HostUnshard::abandon() {
  gather_.reset();
  finish_copies();
}

}  // namespace accelerate::detail
