#include "parallel/unit_reduction.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

constexpr std::int64_t kMarkBytes = 8;

}  // namespace

struct UnitReduction::Large {
  Large(const Group& group, std::string what)
      : exchange(group, std::move(what)) {}

  Exchange exchange;
  at::Tensor outgoing;               // whole, on the host
  std::vector<at::Tensor> incoming;  // one a rank
  /// What it is copied from, until the event.
  at::Tensor on_device;
  std::optional<c10::Event> copied;
};

UnitReduction::UnitReduction(
    const std::string& name,
    const ShardGroups& groups,
    const std::vector<ShardedParameter>& parameters,
    const std::vector<std::size_t>& trainable,
    const ShardPools& pools,
    int first_tag)
    : name_(name),
      groups_(groups),
      parameters_(parameters),
      trainable_(trainable),
      pools_(pools),
      first_tag_(first_tag) {}

UnitReduction::~UnitReduction() = default;

int UnitReduction::tag(std::size_t message) const {
  return message_tag(first_tag_, message, MessageKind::reduce, round_);
}

bool UnitReduction::is_large(std::size_t place) const {
  return !parameter(place).is_small();
}

bool UnitReduction::is_taken(std::size_t place) const {
  return place < large_.size() && large_[place] != nullptr;
}

at::Tensor UnitReduction::take_gradient(std::size_t place) {
  const ShardedParameter& of = parameter(place);
  was_used_.resize(trainable_.size());
  at::Tensor gradient = of.whole.grad();
  of.whole.mutable_grad().reset();
  was_used_[place] = gradient.defined() ? 1 : 0;
  if (!gradient.defined())
    return at::zeros(of.whole.sizes(), at::TensorOptions(of.reduced_in()));
  if (gradient.is_sparse()) gradient = gradient.to_dense();
  return gradient.to(of.reduced_in()).contiguous();
}

void UnitReduction::take(std::size_t place) {
  const at::NoGradGuard no_grad;
  large_.resize(trainable_.size());
  large_[place] = std::make_unique<Large>(
      groups_.reducing,
      concat("reducing the gradient of ", parameter(place).name));
  Large& large = *large_[place];
  const at::Tensor gradient = take_gradient(place);
  if (gradient.is_cpu()) {
    large.outgoing = gradient;
    return;
  }
  large.outgoing = pools_.host->take(
      gradient.sizes(),
      at::TensorOptions(gradient.scalar_type()).pinned_memory(true));
  large.outgoing.copy_(gradient, /*non_blocking=*/true);
  const c10::Device device = gradient.device();
  const c10::impl::VirtualGuardImpl guard(device.type());
  large.copied.emplace(device.type());
  large.copied->record(guard.getStream(device));
  large.on_device = gradient;
}

void UnitReduction::send(std::size_t place) {
  const at::NoGradGuard no_grad;
  Large& large = *large_[place];
  const ShardedParameter& of = parameter(place);
  if (large.copied) {
    large.copied->synchronize();
    large.copied.reset();
    large.on_device.reset();
  }
  const Group& group = groups_.reducing;
  large.incoming.resize(static_cast<std::size_t>(group.size()));
  const at::Tensor own = of.rows_of(large.outgoing, group.rank());
  const std::size_t message = trainable_[place];
  for (const int peer : peers_of(group)) {
    at::Tensor& part = large.incoming[static_cast<std::size_t>(peer)];
    part = pools_.host->take(own.sizes(), own.options());
    large.exchange.receive(part, peer, tag(message));
  }
  for (const int peer : peers_of(group)) {
    large.exchange.send(of.rows_of(large.outgoing, peer), peer, tag(message));
  }
}

void UnitReduction::send_rest(std::uint64_t mark) {
  const at::NoGradGuard no_grad;
  const Group& group = groups_.reducing;
  const auto num_ranks = static_cast<std::size_t>(group.size());
  std::vector<std::vector<at::Tensor>> rows(num_ranks);
  for (std::size_t place = 0; place < trainable_.size(); ++place) {
    if (is_large(place)) continue;
    const ShardedParameter& of = parameter(place);
    const at::Tensor gradient = take_gradient(place).cpu();
    for (int rank = 0; rank < group.size(); ++rank) {
      rows[static_cast<std::size_t>(rank)].push_back(
          of.rows_of(gradient, rank).reshape(-1).view(at::kByte));
    }
  }
  // The mark, and which parameters this rank used, before the gradients.
  const at::Tensor head = at::cat(
      {at::tensor({static_cast<std::int64_t>(mark)}, at::kLong).view(at::kByte),
       at::tensor(was_used_, at::kByte)});
  for (auto& of_rank : rows) {
    of_rank.insert(of_rank.begin(), head);
    sent_packs_.push_back(at::cat(of_rank));
  }
  const auto mine = static_cast<std::size_t>(group.rank());
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    packs_.push_back(
        rank == mine ? sent_packs_[mine] : at::empty_like(sent_packs_[mine]));
  }
  rest_ = std::make_unique<Exchange>(
      group, concat("reducing the gradients of ", name_));
  const int last = tag(parameters_.size());
  for (const int peer : peers_of(group)) {
    const auto p = static_cast<std::size_t>(peer);
    rest_->receive(packs_[p], peer, last);
    rest_->send(sent_packs_[p], peer, last);
  }
  is_complete_ = true;
}

at::Tensor UnitReduction::mean_of(
    const ShardedParameter& of,
    std::vector<at::Tensor>& parts) const {
  const at::ScalarType dtype = of.local.scalar_type();
  const bool may_keep = of.whole.is_cpu() && of.reduced_in() == dtype;
  // Memory of another rank's part becomes the sum's; a + b is b + a.
  const std::size_t kept = groups_.reducing.rank() == 0 ? 1 : 0;
  at::Tensor sum;
  std::size_t next = 1;
  if (may_keep && parts.size() > 1) {
    sum = std::move(parts[kept]);
    sum.add_(parts[1 - kept]);
    next = 2;
  } else {
    sum = parts[0].to(dtype, false, /*copy=*/true);
  }
  for (; next < parts.size(); ++next) sum.add_(parts[next]);
  return sum.div_(groups_.reducing.size());
}

void UnitReduction::finish(std::size_t place) {
  if (!sums_.empty() && sums_[place].defined()) return;
  const at::NoGradGuard no_grad;
  sums_.resize(trainable_.size());
  Large& large = *large_[place];
  large.exchange.wait();
  const ShardedParameter& of = parameter(place);
  const int mine = groups_.reducing.rank();
  std::vector<at::Tensor> parts = std::move(large.incoming);
  at::Tensor& own = parts[static_cast<std::size_t>(mine)];
  own = of.rows_of(large.outgoing, mine);
  sums_[place] = mean_of(of, parts);
  own.reset();
  for (at::Tensor& part : parts) {
    if (part.defined()) pools_.host->give(std::move(part));
  }
  if (!of.whole.is_cpu()) pools_.host->give(std::move(large.outgoing));
  large.outgoing.reset();
}

bool UnitReduction::finish_rest() {
  const at::NoGradGuard no_grad;
  for (std::size_t place = 0; place < trainable_.size(); ++place) {
    if (is_large(place)) finish(place);
  }
  sums_.resize(trainable_.size());
  rest_->wait();
  bool are_alike = true;
  const auto count = static_cast<std::int64_t>(trainable_.size());
  at::Tensor used = at::zeros({count}, at::kLong);
  const at::Tensor mark = sent_packs_.front().narrow(0, 0, kMarkBytes);
  for (const at::Tensor& pack : packs_) {
    are_alike = are_alike && at::equal(pack.narrow(0, 0, kMarkBytes), mark);
    used.add_(pack.narrow(0, kMarkBytes, count));
  }
  const auto* const num_users = used.const_data_ptr<std::int64_t>();
  std::int64_t begin = kMarkBytes + count;
  for (std::size_t place = 0; place < trainable_.size(); ++place) {
    const ShardedParameter& of = parameter(place);
    if (!is_large(place)) {
      std::vector<at::Tensor> parts;
      const std::int64_t bytes = of.local.numel() *
          static_cast<std::int64_t>(c10::elementSize(of.reduced_in()));
      for (const at::Tensor& pack : packs_) {
        parts.push_back(pack.narrow(0, begin, bytes)
                            .clone()
                            .view(of.reduced_in())
                            .view(of.local.sizes()));
      }
      begin += bytes;
      sums_[place] = mean_of(of, parts);
    }
    if (num_users[place] == 0) continue;
    const at::Tensor mean = sums_[place].to(of.local.device());
    at::Tensor& gradient = of.local.mutable_grad();
    if (gradient.defined()) {
      gradient.add_(mean);
    } else {
      gradient = mean;
    }
  }
  begin_anew();
  return are_alike;
}

void UnitReduction::abandon() {
  if (!large_.empty() || is_complete_) begin_anew();
}

// Memory of messages under way stays, see Exchange.
void UnitReduction::begin_anew() {
  large_.clear();
  sums_.clear();
  was_used_.clear();
  packs_.clear();
  sent_packs_.clear();
  rest_.reset();
  is_complete_ = false;
  ++round_;
}

}  // namespace accelerate::detail
