#include "parallel/shard/reduction/host_reduction.h"

#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/Event.h>

#include "base/text/text.h"
#include "parallel/shard/copy_event.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kHashBytes = 8;

}  // namespace

struct HostReduction::Large {
  BegunExchange exchange;
  at::Tensor outgoing;               // the full gradient, on the host
  std::vector<at::Tensor> incoming;  // one per rank
  /// The gradient that `outgoing` is copied from, until `copied`.
  at::Tensor on_device;
  std::optional<c10::Event> copied;
};

HostReduction::HostReduction(
    Group group,
    HostTags tags,
    std::shared_ptr<BlockPool> pool)
    : group_(std::move(group)), tags_(tags), pool_(std::move(pool)) {}

HostReduction::~HostReduction() = default;

at::Tensor HostReduction::take_gradient(
    const UnitShards& unit,
    std::size_t place) {
  const ShardedParameter& parameter = unit.trained(place);
  was_used_.resize(unit.trainable.size());
  at::Tensor gradient = parameter.take_gradient();
  was_used_[place] = gradient.defined() ? 1 : 0;
  if (gradient.defined()) return gradient;
  return at::zeros(
      parameter.full.sizes(), at::TensorOptions(parameter.reduced_in()));
}

void HostReduction::take(const UnitShards& unit, std::size_t place) {
  large_.resize(unit.trainable.size());
  large_[place] = std::make_unique<Large>();
  Large& large = *large_[place];
  const at::Tensor gradient = take_gradient(unit, place);
  if (gradient.is_cpu()) {
    large.outgoing = gradient;
    return;
  }
  large.outgoing =
      take_pinned(*pool_, gradient.sizes(), gradient.scalar_type());
  large.outgoing.copy_(gradient, /*non_blocking=*/true);
  large.copied = event_after_copies(gradient.device());
  large.on_device = gradient;
}

void HostReduction::send(const UnitShards& unit, std::size_t place) {
  Large& large = *large_[place];
  const ShardedParameter& parameter = unit.trained(place);
  if (large.copied) {
    large.copied->synchronize();
    large.copied.reset();
    large.on_device.reset();
  }
  large.incoming.resize(static_cast<std::size_t>(group_.size()));
  const at::Tensor own = parameter.rows_of(large.outgoing, group_.rank());
  const int tag = tags_.tag(unit.trainable[place], round_);
  std::vector<PeerMessage> sends, receives;
  for (const int peer : peers_of(group_)) {
    at::Tensor& shard = large.incoming[static_cast<std::size_t>(peer)];
    shard = pool_->take(own.sizes(), own.options());
    receives.push_back({shard, peer, tag});
    sends.push_back({parameter.rows_of(large.outgoing, peer), peer, tag});
  }
  large.exchange = BegunExchange::messages(
      group_,
      format("reducing the gradient of {}", parameter.name),
      std::move(sends),
      std::move(receives));
}

void HostReduction::send_rest(
    const UnitShards& unit,
    std::uint64_t order_hash) {
  const auto num_ranks = static_cast<std::size_t>(group_.size());
  std::vector<std::vector<at::Tensor>> rows(num_ranks);
  for (std::size_t place = 0; place < unit.trainable.size(); ++place) {
    const ShardedParameter& parameter = unit.trained(place);
    if (!parameter.is_small()) continue;
    // On the host: small gradients travel in one pack, between hosts.
    const at::Tensor gradient = take_gradient(unit, place).cpu();
    for (int rank = 0; rank < group_.size(); ++rank) {
      rows[static_cast<std::size_t>(rank)].push_back(
          parameter.rows_of(gradient, rank).reshape(-1).view(at::kByte));
    }
  }
  // A pack begins with the hash, and a flag per parameter that this rank used.
  const at::Tensor header = at::cat(
      {at::tensor({static_cast<std::int64_t>(order_hash)}, at::kLong)
           .view(at::kByte),
       at::tensor(was_used_, at::kByte)});
  for (auto& contents : rows) {
    contents.insert(contents.begin(), header);
    sent_packs_.push_back(at::cat(contents));
  }
  const auto mine = static_cast<std::size_t>(group_.rank());
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    packs_.push_back(
        rank == mine ? sent_packs_[mine] : at::empty_like(sent_packs_[mine]));
  }
  std::vector<PeerMessage> sends, receives;
  const int tag = tags_.tag(unit.parameters.size(), round_);
  for (const int peer : peers_of(group_)) {
    const auto p = static_cast<std::size_t>(peer);
    receives.push_back({packs_[p], peer, tag});
    sends.push_back({sent_packs_[p], peer, tag});
  }
  rest_ = BegunExchange::messages(
      group_,
      format("reducing the gradients of {}", unit.name),
      std::move(sends),
      std::move(receives));
}

at::Tensor HostReduction::mean_of(
    const ShardedParameter& parameter,
    std::vector<at::Tensor>& shards) const {
  const at::ScalarType dtype = parameter.local.scalar_type();
  const bool may_keep =
      parameter.full.is_cpu() && parameter.reduced_in() == dtype;
  // The sum reuses the memory of another rank's shard; a + b equals b + a.
  const std::size_t kept = group_.rank() == 0 ? 1 : 0;
  at::Tensor sum;
  std::size_t next = 1;
  if (may_keep && shards.size() > 1) {
    sum = std::move(shards[kept]);
    sum.add_(shards[1 - kept]);
    next = 2;
  } else if (may_keep) {
    // The only shard is the gradient itself, which has been taken.
    sum = std::move(shards[0]);
  } else {
    sum = shards[0].to(dtype, false, /*copy=*/true);
  }
  for (; next < shards.size(); ++next) sum.add_(shards[next]);
  return sum.div_(group_.size());
}

void HostReduction::finish(const UnitShards& unit, std::size_t place) {
  if (!means_.empty() && means_[place].defined()) return;
  means_.resize(unit.trainable.size());
  Large& large = *large_[place];
  large.exchange.wait();
  const ShardedParameter& parameter = unit.trained(place);
  const int mine = group_.rank();
  std::vector<at::Tensor> shards = std::move(large.incoming);
  at::Tensor& own = shards[static_cast<std::size_t>(mine)];
  own = parameter.rows_of(large.outgoing, mine);
  means_[place] = mean_of(parameter, shards);
  own.reset();
  for (at::Tensor& shard : shards) {
    if (shard.defined()) pool_->give(std::move(shard));
  }
  if (!parameter.full.is_cpu()) pool_->give(std::move(large.outgoing));
  large.outgoing.reset();
}

std::vector<at::Tensor> HostReduction::unpack(
    const ShardedParameter& parameter,
    std::int64_t begin,
    std::int64_t num_bytes) const {
  std::vector<at::Tensor> shards;
  for (const at::Tensor& pack : packs_) {
    shards.push_back(pack.narrow(0, begin, num_bytes)
                         .clone()
                         .view(parameter.reduced_in())
                         .view(parameter.local.sizes()));
  }
  return shards;
}

bool HostReduction::finish_rest(const UnitShards& unit) {
  for (std::size_t place = 0; place < unit.trainable.size(); ++place) {
    if (!unit.trained(place).is_small()) finish(unit, place);
  }
  means_.resize(unit.trainable.size());
  rest_->wait();
  bool are_alike = true;
  const auto count = static_cast<std::int64_t>(unit.trainable.size());
  at::Tensor used = at::zeros({count}, at::kLong);
  const at::Tensor hash = sent_packs_.front().narrow(0, 0, kHashBytes);
  for (const at::Tensor& pack : packs_) {
    are_alike = are_alike && at::equal(pack.narrow(0, 0, kHashBytes), hash);
    used.add_(pack.narrow(0, kHashBytes, count));
  }
  const auto* const num_users = used.const_data_ptr<std::int64_t>();
  std::int64_t begin = kHashBytes + count;
  for (std::size_t place = 0; place < unit.trainable.size(); ++place) {
    const ShardedParameter& parameter = unit.trained(place);
    if (parameter.is_small()) {
      const std::int64_t num_bytes = parameter.local.numel() *
          static_cast<std::int64_t>(c10::elementSize(parameter.reduced_in()));
      std::vector<at::Tensor> shards = unpack(parameter, begin, num_bytes);
      begin += num_bytes;
      means_[place] = mean_of(parameter, shards);
    }
    if (num_users[place] > 0)
      parameter.add_gradient(means_[place].to(parameter.local.device()));
  }
  start_next_round();
  return are_alike;
}

void HostReduction::abandon() {
  if (!large_.empty() || rest_) start_next_round();
}

// The group keeps the memory of messages in flight.
void HostReduction::start_next_round() {
  large_.clear();
  means_.clear();
  was_used_.clear();
  packs_.clear();
  sent_packs_.clear();
  rest_.reset();
  ++round_;
}

}  // namespace accelerate::detail
