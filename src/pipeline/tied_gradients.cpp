#include "pipeline/tied_gradients.h"

#include <cstdint>
#include <map>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace accelerate::detail {

namespace {

// The tensor in which backward accumulates the parameter's gradient. Master
// weights get theirs from it later.
const at::Tensor& accumulated_in(
    const ParameterTable& table,
    const at::Tensor& tensor) {
  const Parameter* const row = table.find(tensor);
  return row == nullptr || row->layout.is_unsharded() ? tensor : row->local;
}

}  // namespace

TiedGradients::TiedGradients(
    const World& world,
    const std::vector<int>& pipeline_ranks,
    const std::vector<TiedParameter>& tied) {
  std::map<std::vector<int>, std::size_t> known;
  const at::NoGradGuard no_grad;
  for (const TiedParameter& parameter : tied) {
    if (!parameter.tensor.defined()) continue;
    std::vector<int> ranks;
    for (const int rank : parameter.ranks)
      ranks.push_back(pipeline_ranks[static_cast<std::size_t>(rank)]);
    const auto [place, is_new] = known.emplace(ranks, ties_.size());
    if (is_new) ties_.push_back({world.new_group(ranks), {}});
    Tie& tie = ties_[place->second];
    tie.entries.push_back({parameter.tensor, std::nullopt});
    if (parameter.tensor.is_meta()) continue;
    const at::Tensor values =
        parameter.tensor.detach().to(world.device()).contiguous();
    tie.group.broadcast(values, 0);
    parameter.tensor.detach().copy_(values);
  }
}

void TiedGradients::begin_step(const ParameterTable& table) {
  const at::NoGradGuard no_grad;
  for (Tie& tie : ties_) {
    for (Entry& entry : tie.entries) {
      if (!entry.summed) continue;
      const at::Tensor& gradient = accumulated_in(table, entry.tensor).grad();
      const auto left = entry.summed->lock();
      entry.summed.reset();
      const bool is_sum = gradient.defined() && left &&
          left.get() == gradient.unsafeGetTensorImpl();
      if (is_sum && tie.group.rank() > 0) gradient.zero_();
    }
  }
}

void TiedGradients::sum(const ParameterTable& table) {
  const at::NoGradGuard no_grad;
  for (Tie& tie : ties_) {
    std::vector<std::int64_t> has_gradient;
    for (const Entry& entry : tie.entries) {
      has_gradient.push_back(
          accumulated_in(table, entry.tensor).grad().defined() ? 1 : 0);
    }
    // In host memory, so that no host waits for its device.
    const at::Tensor num_owners = at::tensor(has_gradient, at::kLong);
    tie.group.all_reduce(num_owners);
    for (std::size_t i = 0; i < tie.entries.size(); ++i) {
      Entry& entry = tie.entries[i];
      if (num_owners.const_data_ptr<std::int64_t>()[i] == 0) continue;
      const at::Tensor& parameter = accumulated_in(table, entry.tensor);
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) {
        gradient = at::zeros(
            parameter.sizes(), parameter.options().requires_grad(false));
      }
      tie.group.all_reduce(gradient);
      entry.summed =
          c10::weak_intrusive_ptr<c10::TensorImpl>(gradient.getIntrusivePtr());
    }
  }
}

}  // namespace accelerate::detail
