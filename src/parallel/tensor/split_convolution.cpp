#include <string_view>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "parallel/tensor/split_keeper.h"

namespace accelerate::detail {

// Computes this rank's channels of a convolution, or its share of their sum, if
// the operator is a convolution with a split weight.
bool SplitKeeper::convolve(GatedCall& call) {
  const std::string_view name = call.operation().operator_name().name;
  if (name != "aten::conv1d" && name != "aten::conv2d" &&
      name != "aten::conv3d")
    return false;
  const WatchedSplit* const weight = find(call.arguments()[1]);
  if (weight == nullptr || !weight->split.product) return false;
  RegionEntrance entrance =
      entrance_.of(*weight, call.arguments().front().toTensor(), group_);
  const auto bias = call.arguments()[2].toOptional<at::Tensor>();
  call.arguments().front() = entrance.enter();
  if (!weight->returns_columns()) call.arguments()[2] = c10::IValue();
  call.run();
  add_up(
      call,
      *weight,
      call.results().front().toTensor(),
      bias.value_or(at::Tensor()));
  return true;
}

}  // namespace accelerate::detail
