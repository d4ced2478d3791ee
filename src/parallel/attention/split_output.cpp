#include "parallel/attention/split_output.h"

#include <string>

#include <ATen/core/dispatch/Dispatcher.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"
#include "gate/watched_tensor.h"
#include "parallel/random_region.h"

namespace accelerate::detail {

at::Tensor SplitOutput::placeholder(
    std::shared_ptr<const AttentionLayer> layer,
    at::Tensor own,
    std::int64_t rows) {
  const std::int64_t sizes[] = {
      own.size(1) * layer->num_heads, rows, layer->head_size};
  const std::shared_ptr<SplitOutput> keeper(
      new SplitOutput(std::move(layer), std::move(own)));
  return keeper->placeholder_of(sizes);
}

at::Tensor SplitOutput::placeholder_of(at::IntArrayRef sizes) {
  return make_placeholder(
      sizes,
      own_.options(),
      {shared_from_this(), 0, this},
      format(
          "[parallel] ranks compute the heads of \"{}\" together, so that what "
          "they return has no memory before its last layer",
          layer_->name));
}

at::Tensor SplitOutput::of_all_heads() const {
  const SplitHeads& split = *layer_->split;
  return gather_from_region(
      own_,
      -1,
      split.group,
      GatheredGradient::equal,
      split.columns(layer_->head_size));
}

void SplitOutput::call(GatedCall& call) {
  const std::string& name = call.operation().operator_name().name;
  if (name == "aten::view" || name == "aten::transpose") return call.run();
  const at::Tensor view = call.arguments().front().toTensor();
  if (name == "aten::contiguous") {
    if (view.is_contiguous()) return call.run();
    return call.replace(placeholder_of(view.sizes()));
  }
  if (name != "aten::matmul" && name != "aten::linear") {
    throw ConfigError(format(
        "[parallel] \"{}\" calls {} on the outputs of its heads, which this "
        "LibTorch's torch::nn::MultiheadAttention was not known to do; set "
        "tensor to 1",
        layer_->name,
        name));
  }
  // Otherwise the keeper of the last layer's weight leaves it.
  if (!layer_->out_takes_heads || layer_->is_separate)
    leave_random_region(layer_->split->region_owner);
  call.arguments().front() = layer_->out_takes_heads ? own_ : of_all_heads();
  call.run();
}

}  // namespace accelerate::detail
