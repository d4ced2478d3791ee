#include <array>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include "base/text/text.h"
#include "comm/autograd/linear_product.h"
#include "comm/autograd/region.h"
#include "parallel/tensor/redistribute.h"
#include "parallel/tensor/split_keeper.h"

namespace accelerate::detail {

namespace {

// An operator that modules call with their input and weight.
struct ModuleOperator {
  std::string_view name;
  WholeModuleKind kind;
  std::size_t input_at;
  std::size_t weight_at;
};

constexpr std::array kModuleOperators{
    ModuleOperator{"aten::embedding", WholeModuleKind::embedding, 1, 0},
    ModuleOperator{"aten::layer_norm", WholeModuleKind::norm, 0, 2},
    ModuleOperator{"aten::group_norm", WholeModuleKind::norm, 0, 2},
    ModuleOperator{"aten::batch_norm", WholeModuleKind::norm, 0, 1},
    ModuleOperator{"aten::conv1d", WholeModuleKind::convolution, 0, 1},
    ModuleOperator{"aten::conv2d", WholeModuleKind::convolution, 0, 1},
    ModuleOperator{"aten::conv3d", WholeModuleKind::convolution, 0, 1}};

}  // namespace

std::optional<SplitKeeper::WholeCall> SplitKeeper::whole_call_in(
    GatedCall& call) const {
  const auto prepared_as = [&](const c10::IValue& value, WholeModuleKind kind) {
    const WatchedSplit* const watched = find(value);
    const bool is_kind = watched != nullptr && watched->split.prepared &&
        watched->split.prepared->kind == kind;
    return is_kind ? watched : nullptr;
  };
  const auto& name = call.operation().operator_name().name;
  for (const ModuleOperator& each : kModuleOperators) {
    if (name != each.name) continue;
    const WatchedSplit* const weight =
        prepared_as(call.arguments()[each.weight_at], each.kind);
    if (weight == nullptr) return std::nullopt;
    return WholeCall{weight, each.input_at};
  }
  const WatchedSplit* weight = nullptr;
  const std::optional<WeightProduct> product = weight_product_in(
      call, [&](const c10::IValue& value) -> const std::vector<std::int64_t>* {
        weight = prepared_as(value, WholeModuleKind::product);
        return weight == nullptr ? nullptr : &weight->local_shape;
      });
  if (!product) return std::nullopt;
  return WholeCall{weight, product->input_at};
}

// Changes the layouts of the input and the result of a module that is not
// split.
bool SplitKeeper::call_whole_module(GatedCall& call) {
  if (!is_in_model()) return false;
  const std::optional<WholeCall> found = whole_call_in(call);
  if (!found) return false;
  const SplitParameter& split = found->weight->split;
  const PreparedModule& how = *split.prepared;
  c10::IValue& input = call.arguments()[found->input_at];
  input = redistribute(
      how.kind == WholeModuleKind::product
          ? as_autocast_product(input.toTensor())
          : input.toTensor(),
      how.input,
      how.num_mixed_dims,
      group_,
      format("the input of \"{}\"", split.module));
  if (how.works_on_slices()) sum_gradients_of_arguments(call);
  call.run();
  c10::IValue& result = call.results().front();
  result = redistribute(
      result.toTensor(),
      how.output,
      how.kind == WholeModuleKind::embedding ? 1 : 0,
      group_,
      format("the result of \"{}\"", split.module));
  const bool returns_slice = slice_in(how.output.to) != nullptr;
  if (returns_slice) {
    last_slice_ = format(
        "layer \"{}\" returned {}, a slice along dimension {} of what one "
        "process has",
        split.module,
        result.toTensor().sizes(),
        slice_in(how.output.to)->dim);
  }
  follow_placement(slice_in(how.input.from) != nullptr, returns_slice);
  return true;
}

// The ranks have summands of the gradients of this module's parameters.
void SplitKeeper::sum_gradients_of_arguments(GatedCall& call) const {
  if (!at::GradMode::is_enabled()) return;
  for (c10::IValue& value : call.arguments()) {
    const WatchedSplit* const watched = find(value);
    if (watched != nullptr && watched->split.prepared &&
        value.toTensor().requires_grad())
      value = copy_to_region(value.toTensor(), group_);
  }
}

}  // namespace accelerate::detail
