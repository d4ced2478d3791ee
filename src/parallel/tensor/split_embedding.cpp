#include <span>

#include <ATen/Functions.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "parallel/tensor/split_keeper.h"

namespace accelerate::detail {

namespace {

at::Tensor look_up_vocabulary(
    GatedCall& call,
    const WatchedSplit& table,
    const Group& group) {
  const std::span<c10::IValue> arguments = call.arguments();
  const at::Tensor& indices = arguments[1].toTensor();
  const std::int64_t rows = table.global_shape[0];
  if (indices.is_cpu() && indices.numel() > 0 &&
      (indices.min().item<std::int64_t>() < 0 ||
       indices.max().item<std::int64_t>() >= rows)) {
    throw ConfigError(format(
        "[parallel] embedding \"{}\" of {} rows got indices from {} to {}, but "
        "they count from 0 to {}",
        table.split.module,
        rows,
        indices.min().item<std::int64_t>(),
        indices.max().item<std::int64_t>(),
        rows - 1));
  }
  const auto rank = static_cast<std::size_t>(group.rank());
  const std::int64_t begin = table.begins[rank];
  const std::int64_t end = table.begins[rank + 1];
  const at::Tensor is_elsewhere =
      indices.lt(begin).logical_or_(indices.ge(end));
  const std::int64_t padding = arguments[2].toInt();
  const at::Tensor found = at::embedding(
      arguments[0].toTensor(),
      (indices - begin).masked_fill_(is_elsewhere, 0),
      padding >= begin && padding < end ? padding - begin : -1,
      /*scale_grad_by_freq=*/false,
      arguments[4].toBool());
  const at::Tensor own = found.masked_fill(is_elsewhere.unsqueeze(-1), 0);
  const accelerate::Shard* const slice =
      slice_in(table.split.embedding->output);
  return slice == nullptr ? reduce_from_region(own, group)
                          : reduce_scatter_to_region(own, slice->dim, group);
}

}  // namespace

// Handles an operator that looks up embeddings in a split table.
bool SplitKeeper::look_up(GatedCall& call) {
  const auto& name = call.operation().operator_name();
  if (name.name != "aten::embedding" || !name.overload_name.empty())
    return false;
  const WatchedSplit* const table = find(call.arguments().front());
  if (table == nullptr || !table->split.embedding) return false;
  follow_placement(
      /*takes_slice=*/false,
      slice_in(table->split.embedding->output) != nullptr);
  if (table->split.embedding->is_vocabulary) {
    call.replace(look_up_vocabulary(call, *table, group_));
    return true;
  }
  call.run();
  at::Tensor columns = call.results().front().toTensor();
  if (slice_in(table->split.embedding->output) != nullptr) {
    remember(*table, columns);
    return true;
  }
  call.results().front() = gather_from_region(
      columns, -1, group_, GatheredGradient::equal, table->sizes());
  return true;
}

}  // namespace accelerate::detail
