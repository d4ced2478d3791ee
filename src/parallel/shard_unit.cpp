#include "parallel/shard_unit.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/text.h"
#include "parallel/unit_reduction.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kSmallBytes = 32 << 10;

}  // namespace

std::vector<std::int64_t> row_begins(std::int64_t num_rows, int num_ranks) {
  std::vector<std::int64_t> begins;
  for (int rank = 0; rank <= num_ranks; ++rank)
    begins.push_back(num_rows * rank / num_ranks);
  return begins;
}

at::Tensor rows_between(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& begins,
    int part) {
  const auto p = static_cast<std::size_t>(part);
  return tensor.narrow(0, begins[p], begins[p + 1] - begins[p]);
}

std::vector<int> peers_of(const Group& group) {
  std::vector<int> others;
  for (int step = 1; step < group.size(); ++step)
    others.push_back((group.rank() + step) % group.size());
  return others;
}

int message_tag(
    int first,
    std::size_t message,
    MessageKind kind,
    std::uint64_t round) {
  return first + 4 * static_cast<int>(message) +
      (kind == MessageKind::reduce ? 2 : 0) + static_cast<int>(round % 2);
}

bool ShardedParameter::is_small() const { return whole.nbytes() < kSmallBytes; }

at::Tensor ShardedParameter::rows_of(const at::Tensor& tensor, int rank) const {
  return rows_between(tensor, row_begins, rank);
}

// Whole parameters on their way, and the messages that small ones share.
struct ShardUnit::Gather {
  Exchange exchange;
  Group group;
  bool is_from_neighbours;
  std::vector<at::Tensor> memory;
  std::vector<at::Tensor>
      on_host;                    // `memory` itself, or what it is copied from
  std::vector<at::Tensor> packs;  // one a rank; bytes
};

ShardUnit::ShardUnit(
    std::string name,
    ShardGroups groups,
    std::vector<ShardedParameter> parameters,
    ShardPools pools,
    int first_tag)
    : name_(std::move(name)),
      groups_(std::move(groups)),
      parameters_(std::move(parameters)),
      pools_(std::move(pools)),
      first_tag_(first_tag) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ShardedParameter& parameter = parameters_[i];
    if (parameter.whole.requires_grad()) trainable_.push_back(i);
    parameter.neighbour_begins =
        row_begins(parameter.whole.size(0), groups_.neighbours.size());
  }
  reduction_ = std::make_unique<UnitReduction>(
      name_, groups_, parameters_, trainable_, pools_, first_tag_);
}

ShardUnit::~ShardUnit() = default;

std::int64_t ShardUnit::whole_bytes() const {
  std::int64_t bytes = 0;
  for (const ShardedParameter& parameter : parameters_)
    bytes += static_cast<std::int64_t>(parameter.whole.nbytes());
  return bytes;
}

void ShardUnit::start_gather() {
  if (is_whole_ || gather_) return;
  const at::NoGradGuard no_grad;
  const bool is_near = neighbours_have_it_;
  const Group& group = is_near ? groups_.neighbours : groups_.gathering;
  const int mine = group.rank();
  gather_ = std::unique_ptr<Gather>(new Gather{
      Exchange(group, concat("gathering the parameters of ", name_)),
      group,
      is_near,
      {},
      {},
      {}});
  const std::uint64_t round =
      is_near ? num_neighbour_gathers_++ : num_gathers_++;
  const auto tag = [&](std::size_t message) {
    return message_tag(first_tag_, message, MessageKind::gather, round);
  };
  std::vector<std::vector<at::Tensor>> small_rows(
      static_cast<std::size_t>(group.size()));
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const ShardedParameter& parameter = parameters_[i];
    // Others of the unit may have been let go of.
    if (parameter.gate && parameter.gate->is_filled()) {
      gather_->memory.emplace_back();
      gather_->on_host.emplace_back();
      continue;
    }
    // A parameter without a gate keeps its memory, and gets the others' rows.
    at::Tensor memory = parameter.gate
        ? pools_.whole->take(
              parameter.whole.sizes(),
              parameter.whole.options().requires_grad(false))
        : parameter.whole.detach();
    const at::Tensor on_host = host_memory(memory);
    const auto& begins =
        is_near ? parameter.neighbour_begins : parameter.row_begins;
    const at::Tensor own = rows_between(on_host, begins, mine);
    const at::Tensor& kept = is_near ? parameter.kept_rows : parameter.local;
    if (!own.is_alias_of(kept)) own.copy_(kept);
    if (parameter.is_small()) {
      for (int rank = 0; rank < group.size(); ++rank) {
        small_rows[static_cast<std::size_t>(rank)].push_back(
            rows_between(on_host, begins, rank).reshape(-1).view(at::kByte));
      }
    } else {
      for (const int peer : peers_of(group)) {
        gather_->exchange.receive(
            rows_between(on_host, begins, peer), peer, tag(i));
      }
      for (const int peer : peers_of(group))
        gather_->exchange.send(own, peer, tag(i));
    }
    gather_->memory.push_back(std::move(memory));
    gather_->on_host.push_back(on_host);
  }
  const std::size_t last = parameters_.size();
  for (const auto& rows : small_rows) {
    gather_->packs.push_back(
        rows.empty() ? at::empty({0}, at::kByte) : at::cat(rows));
  }
  for (const int peer : peers_of(group)) {
    at::Tensor& pack = gather_->packs[static_cast<std::size_t>(peer)];
    gather_->exchange.receive(pack, peer, tag(last));
    gather_->exchange.send(
        gather_->packs[static_cast<std::size_t>(mine)], peer, tag(last));
  }
}

void ShardUnit::finish_gather() {
  if (!gather_) return;
  const at::NoGradGuard no_grad;
  gather_->exchange.wait();
  const Group& group = gather_->group;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!parameters_[i].is_small() || !gather_->on_host[i].defined())
        continue;
      const at::Tensor rows =
          rows_between(
              gather_->on_host[i],
              gather_->is_from_neighbours ? parameters_[i].neighbour_begins
                                          : parameters_[i].row_begins,
              rank)
              .reshape(-1);
      const auto size = static_cast<std::int64_t>(rows.nbytes());
      rows.view(at::kByte).copy_(
          gather_->packs[static_cast<std::size_t>(rank)].narrow(0, at, size));
      at += size;
    }
  }
  queue_copies(*gather_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].gate && gather_->memory[i].defined())
      parameters_[i].gate->fill(gather_->memory[i]);
  }
  gather_.reset();
  is_whole_ = true;
}

at::Tensor ShardUnit::host_memory(const at::Tensor& memory) const {
  if (memory.is_cpu()) return memory;
  return pools_.host->take(
      memory.sizes(),
      at::TensorOptions(memory.scalar_type()).pinned_memory(true));
}

void ShardUnit::queue_copies(Gather& gather) {
  finish_copies();
  c10::Device device = at::kCPU;
  for (std::size_t i = 0; i < gather.memory.size(); ++i) {
    if (!gather.memory[i].defined() || gather.memory[i].is_cpu()) continue;
    device = gather.memory[i].device();
    gather.memory[i].copy_(gather.on_host[i], /*non_blocking=*/true);
    being_copied_.push_back(std::move(gather.on_host[i]));
  }
  if (being_copied_.empty()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  copied_.emplace(device.type());
  copied_->record(guard.getStream(device));
}

void ShardUnit::finish_copies() {
  if (!copied_) return;
  copied_->synchronize();
  copied_.reset();
  for (at::Tensor& memory : being_copied_) pools_.host->give(std::move(memory));
  being_copied_.clear();
}

void ShardUnit::release(bool neighbours_keep_it) {
  finish_gather();
  finish_copies();
  const bool keeps = neighbours_keep_it && groups_.neighbours.size() > 1;
  neighbours_have_it_ = keeps && (is_whole_ || neighbours_have_it_);
  for (ShardedParameter& parameter : parameters_) {
    if (!keeps) parameter.kept_rows.reset();
    if (!parameter.gate || !parameter.gate->is_filled()) continue;
    if (keeps && !parameter.kept_rows.defined()) {
      const at::NoGradGuard no_grad;
      parameter.kept_rows = rows_between(
                                parameter.whole.detach(),
                                parameter.neighbour_begins,
                                groups_.neighbours.rank())
                                .clone();
    }
    pools_.whole->give(parameter.gate->release());
  }
  is_whole_ = false;
}

void ShardUnit::release_parameter(std::size_t i) {
  ShardedParameter& parameter = parameters_[i];
  if (gather_ || parameter.is_small() || !parameter.gate ||
      !parameter.gate->is_filled()) {
    return;
  }
  pools_.whole->give(parameter.gate->release());
  is_whole_ = false;
}

void ShardUnit::watch_for_changes() {
  for (ShardedParameter& parameter : parameters_)
    parameter.version_when_opened = parameter.whole._version();
}

void ShardUnit::keep_changes() {
  const at::NoGradGuard no_grad;
  for (const ShardedParameter& parameter : parameters_) {
    const at::Tensor own =
        parameter.rows_of(parameter.whole.detach(), groups_.gathering.rank());
    if (own.is_alias_of(parameter.local)) continue;
    // Where the part is more precise, only a real change may round it.
    const bool is_exact = own.scalar_type() == parameter.local.scalar_type();
    if (is_exact || parameter.whole._version() != parameter.version_when_opened)
      parameter.local.detach().copy_(own);
  }
}

bool ShardUnit::has_gradient() const {
  return std::any_of(trainable_.begin(), trainable_.end(), [&](std::size_t i) {
    return parameters_[i].whole.grad().defined();
  });
}

void ShardUnit::abandon() {
  gather_.reset();
  reduction_->abandon();
  finish_copies();
  if (parameters_.empty() || !parameters_.front().gate) return;
  for (ShardedParameter& parameter : parameters_) {
    parameter.gate->release();
    parameter.kept_rows.reset();
  }
  is_whole_ = false;
  neighbours_have_it_ = false;
}

}  // namespace accelerate::detail
