#include "parallel/shard/unshard/device_unshard.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "base/text/text.h"
#include "comm/group/begun_exchange.h"
#include "parallel/shard/copy_event.h"
#include "parallel/shard/float8_gather.h"
#include "parallel/shard/peers.h"
#include "parallel/shard/row_pack.h"

namespace accelerate::detail {

struct DeviceUnshard::Gather {
  Gather(Group among, ShardSource from, std::vector<at::Tensor> into)
      : group(std::move(among)),
        source(from),
        memory(std::move(into)),
        bytes(memory.size()),
        scales(memory.size()),
        layout(group.size()) {}

  Group group;
  ShardSource source;
  std::vector<at::Tensor> memory;
  /// What arrives of parameters that travel in float8, and their scales.
  std::vector<at::Tensor> bytes, scales;
  /// Places of small parameters in `pack`.
  RowPack layout;
  std::vector<std::size_t> small = {};
  at::Tensor pack = {};
  /// Begin the exchanges, once the rows that they send are on their way.
  std::vector<std::function<BegunExchange()>> begins = {};
  std::vector<BegunExchange> exchanges = {};
};

DeviceUnshard::DeviceUnshard(
    std::shared_ptr<BlockPool> pool,
    const CopyStream& copies)
    : pool_(std::move(pool)), copies_(copies) {}

DeviceUnshard::~DeviceUnshard() = default;

void DeviceUnshard::start(
    const UnitShards& unit,
    const Group& group,
    ShardSource source,
    std::vector<at::Tensor> memory) {
  gather_ = std::make_unique<Gather>(group, source, std::move(memory));
  const bool is_offloaded = source == ShardSource::all_ranks &&
      std::ranges::any_of(unit.parameters, [](const ShardedParameter& each) {
                              return each.local.is_cpu();
                            });
  // The gather follows the copies, on their stream.
  std::optional<CopyStream::Scope> scope;
  if (is_offloaded) scope.emplace(copies_);
  for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
    if (!gather_->memory[i].defined()) continue;
    if (unit.parameters[i].is_small()) {
      gather_->small.push_back(i);
    } else {
      prepare_large(unit.parameters[i], i);
    }
  }
  prepare_small(unit);
  if (gather_->begins.empty()) return;
  BegunExchange::together(group, [this] {
    for (const auto& begin : gather_->begins)
      gather_->exchanges.push_back(begin());
  });
  gather_->begins.clear();
  if (is_offloaded)
    copied_ = event_after_copies(unit.parameters.front().full.device());
}

void DeviceUnshard::prepare_large(
    const ShardedParameter& parameter,
    std::size_t i) {
  Gather& gather = *gather_;
  const Group& group = gather.group;
  const auto& begins = parameter.begins_in(gather.source);
  at::Tensor into = gather.memory[i];
  const at::Tensor& rows =
      parameter.own_rows_in(gather.source, into.scalar_type());
  if (parameter.travels_in_float8()) {
    gather.scales[i] = *parameter.gathered_scale;
    into = pool_->take(into.sizes(), into.options().dtype(at::kByte));
    gather.bytes[i] = into;
  }
  const at::Tensor own = rows_between(into, begins, group.rank());
  const at::Tensor& scale = gather.scales[i];
  copy_own(own, scale.defined() ? float8_bytes(rows, scale) : rows.detach());
  if (are_even(begins)) {
    gather.begins.emplace_back(
        [=] { return BegunExchange::all_gather(group, into, own); });
    return;
  }
  // Without padding, so that rows arrive in place.
  std::vector<PeerMessage> sends, receives;
  for (const int peer : peers_of(group)) {
    sends.push_back({own, peer});
    receives.push_back({rows_between(into, begins, peer), peer});
  }
  gather.begins.emplace_back(
      [=, what = format("gathering {}", parameter.name)] {
        return BegunExchange::exchange(group, what, sends, receives);
      });
}

void DeviceUnshard::prepare_small(const UnitShards& unit) {
  Gather& gather = *gather_;
  if (gather.small.empty()) return;
  for (const std::size_t i : gather.small) {
    gather.layout.add(
        gather.memory[i].sizes(),
        gather.memory[i].scalar_type(),
        unit.parameters[i].begins_in(gather.source));
  }
  gather.pack =
      gather.layout.make(gather.memory[gather.small.front()].device());
  const int mine = gather.group.rank();
  const at::Tensor part = gather.pack.select(0, mine);
  for (std::size_t place = 0; place < gather.small.size(); ++place) {
    const ShardedParameter& parameter = unit.parameters[gather.small[place]];
    copy_own(
        gather.layout.rows_in(part, place, mine),
        parameter
            .own_rows_in(
                gather.source, gather.memory[gather.small[place]].scalar_type())
            .detach()
            .reshape(-1));
  }
  gather.begins.emplace_back([group = gather.group, pack = gather.pack, part] {
    return BegunExchange::all_gather(group, pack, part);
  });
}

void DeviceUnshard::copy_own(const at::Tensor& to, const at::Tensor& rows) {
  if (to.is_alias_of(rows)) return;
  // The device casts: a cast on the host would have to wait for the copy.
  to.copy_(
      rows.is_cpu() && rows.scalar_type() != to.scalar_type()
          ? rows.to(to.device(), /*non_blocking=*/true)
          : rows,
      /*non_blocking=*/true);
}

std::vector<at::Tensor> DeviceUnshard::finish(const UnitShards&) {
  // Gone even if waiting fails; the group then keeps memory in use.
  const std::unique_ptr<Gather> gather = std::move(gather_);
  for (BegunExchange& exchange : gather->exchanges) exchange.wait();
  for (std::size_t place = 0; place < gather->small.size(); ++place) {
    gather->layout.unpack(
        gather->pack, place, gather->memory[gather->small[place]]);
  }
  for (std::size_t i = 0; i < gather->bytes.size(); ++i) {
    if (!gather->bytes[i].defined()) continue;
    gather->memory[i].copy_(float8_values(gather->bytes[i], gather->scales[i]));
    pool_->give(std::exchange(gather->bytes[i], {}));
  }
  return std::move(gather->memory);
}

void DeviceUnshard::finish_copies() {
  if (!copied_) return;
  copied_->synchronize();
  copied_.reset();
}

void DeviceUnshard::abandon() {
  gather_.reset();
  finish_copies();
}

}  // namespace accelerate::detail
