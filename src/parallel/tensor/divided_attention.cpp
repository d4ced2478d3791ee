#include <string>
#include <utility>
#include <vector>

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"
#include "parallel/tensor/split_keeper.h"

namespace accelerate::detail {

// A MultiheadAttention whose queries are divided projects the positions of all
// ranks, whose columns are gathered; each rank keeps the queries of its
// positions, and attends with them to all keys. Its code then returns those
// positions, since it takes their number from its input. What it calls on the way
// is that of torch/nn/functional/activation.h: chunk of the projections, mul of
// the queries, views, bmm, and add_ of a mask.

// What a row-wise layer takes of an input that was divided along another
// dimension. Gradients of the other columns are those of other ranks.
at::Tensor SplitKeeper::own_columns(
    const WatchedSplit& weight,
    const at::Tensor& gathered) const {
  if (gathered.size(-1) != weight.global_shape[1]) {
    throw ConfigError(format(
        "[parallel] layer \"{}\", whose weight {} is split over {} ranks, was "
        "given an input of shape {} after it was gathered, but its last "
        "dimension should be {}",
        weight.split.module,
        at::IntArrayRef(weight.global_shape),
        group_.size(),
        gathered.sizes(),
        weight.global_shape[1]));
  }
  const auto rank = static_cast<std::size_t>(group_.rank());
  return gathered.narrow(
      -1, weight.begins[rank], weight.begins[rank + 1] - weight.begins[rank]);
}

void SplitKeeper::watch_as(
    const at::Tensor& tensor,
    const WatchedSplit& weight,
    WatchedRole role) {
  // Those of a weight follow each other (add).
  const auto unit = static_cast<std::size_t>(&weight - splits_.data()) +
      static_cast<std::size_t>(role) - static_cast<std::size_t>(weight.role);
  watch_tensor(tensor, {shared_from_this(), unit, this});
}

// The queries of this rank's positions, of what `chunk` divides into queries,
// keys and values.
void SplitKeeper::take_queries(GatedCall& call) const {
  call.run();
  std::vector<at::Tensor> parts = call.results().front().toTensorVector();
  at::Tensor& queries = parts.front();
  const auto begins = slice_begins(queries.size(0), group_.size());
  const auto rank = static_cast<std::size_t>(group_.rank());
  queries = queries.narrow(0, begins[rank], begins[rank + 1] - begins[rank]);
  call.results().front() = c10::List<at::Tensor>(parts);
}

// A mask has a row per position of all ranks.
void SplitKeeper::take_rows_of_mask(GatedCall& call) const {
  const at::Tensor mask = call.arguments()[1].toTensor();
  const std::int64_t own = call.arguments().front().toTensor().size(-2);
  if (mask.dim() >= 2 && mask.size(-2) != own && mask.size(-2) > 1) {
    const auto begins = slice_begins(mask.size(-2), group_.size());
    const auto rank = static_cast<std::size_t>(group_.rank());
    if (begins[rank + 1] - begins[rank] == own)
      call.arguments()[1] = mask.narrow(-2, begins[rank], own);
  }
  call.run();
}

bool SplitKeeper::divide_attention(GatedCall& call) {
  const TensorWatch* const watch = find_watch(call.arguments().front(), this);
  if (watch == nullptr || !is_in_model()) return false;
  const WatchedSplit& watched = splits_[watch->unit];
  const std::string& name = call.operation().operator_name().name;
  switch (watched.role) {
    case WatchedRole::parameter:
      return false;
    case WatchedRole::projections:
      if (name == "aten::chunk") {
        take_queries(call);
      } else if (name == "aten::mul") {
        call.run();
        watch_as(
            call.results().front().toTensor(), watched, WatchedRole::queries);
      } else {
        // The bias, of which each rank has a summand of the gradient.
        run_with_shared_gradients(call);
      }
      return true;
    case WatchedRole::queries: {
      call.run();
      const c10::IValue& result = call.results().front();
      // Views are watched with what they are views of.
      if (name == "aten::bmm") {
        watch_as(result.toTensor(), watched, WatchedRole::scores);
      } else if (
          name == "aten::contiguous" && find_watch(result, this) == nullptr) {
        watch_as(result.toTensor(), watched, WatchedRole::queries);
      }
      return true;
    }
    case WatchedRole::scores:
      if (name == "aten::add_") {
        take_rows_of_mask(call);
      } else {
        call.run();
      }
      return true;
  }
  return false;
}

}  // namespace accelerate::detail
