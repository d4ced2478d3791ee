#include "adapters/layer_call.h"

#include "gate/weight_product.h"

namespace accelerate::detail {

namespace {

at::Tensor bias_in(const c10::IValue& value) {
  return value.toOptional<at::Tensor>().value_or(at::Tensor());
}

bool is_convolution(const c10::OperatorName& name) {
  return (name.name == "aten::conv1d" || name.name == "aten::conv2d" ||
          name.name == "aten::conv3d") &&
      (name.overload_name.empty() || name.overload_name == "padding");
}

}  // namespace

std::optional<LayerCall> layer_call_in(
    GatedCall& call,
    c10::function_ref<const KnownLayer*(const c10::IValue&)> layer_of) {
  const auto of_kind = [&](const c10::IValue& value, LayerKind kind) {
    const KnownLayer* const layer = layer_of(value);
    return layer != nullptr && layer->kind == kind ? layer : nullptr;
  };
  const auto is_weight = [&](const c10::IValue& value, LayerKind kind) {
    const KnownLayer* const layer = of_kind(value, kind);
    return layer != nullptr &&
        value.toTensor().sizes() == at::IntArrayRef(layer->sizes);
  };
  const auto& name = call.operation().operator_name();
  const auto arguments = call.arguments();
  if (name.name == "aten::embedding" && name.overload_name.empty() &&
      is_weight(arguments[0], LayerKind::embedding)) {
    return LayerCall{
        LayerKind::embedding,
        call.operation(),
        arguments[1].toTensor(),
        arguments[0].toTensor(),
        {},
        {arguments.begin(), arguments.end()}};
  }
  if (is_convolution(name) && is_weight(arguments[1], LayerKind::convolution)) {
    return LayerCall{
        LayerKind::convolution,
        call.operation(),
        arguments[0].toTensor(),
        arguments[1].toTensor(),
        bias_in(arguments[2]),
        {arguments.begin(), arguments.end()}};
  }
  const auto product = weight_product_in(
      call, [&](const c10::IValue& value) -> const std::vector<std::int64_t>* {
        const KnownLayer* const layer = of_kind(value, LayerKind::linear);
        return layer == nullptr ? nullptr : &layer->sizes;
      });
  if (product) {
    return LayerCall{
        LayerKind::linear,
        call.operation(),
        arguments[product->input_at].toTensor(),
        product->weight,
        product->bias};
  }
  const auto transposed = transposed_product_in(
      call, [&](const c10::IValue& value) -> const std::vector<std::int64_t>* {
        const KnownLayer* const layer =
            of_kind(value, LayerKind::transposed_linear);
        return layer == nullptr ? nullptr : &layer->sizes;
      });
  if (!transposed) return std::nullopt;
  return LayerCall{
      LayerKind::transposed_linear,
      call.operation(),
      arguments[transposed->input_at].toTensor(),
      transposed->transposed,
      transposed->bias};
}

}  // namespace accelerate::detail
