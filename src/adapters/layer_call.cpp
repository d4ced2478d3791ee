#include "adapters/layer_call.h"

#include <string>
#include <string_view>
#include <utility>

#include "gate/weight_product.h"

namespace accelerate::detail {

namespace {

bool is_one(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().equal(1);
}

at::Tensor bias_in(const c10::IValue& value) {
  return value.toOptional<at::Tensor>().value_or(at::Tensor());
}

// A product with the weight itself instead of its transpose.
std::optional<LayerCall> transposed_call(
    GatedCall& call,
    const std::function<bool(const c10::IValue&)>& is_weight) {
  const auto arguments = call.arguments();
  const auto& name = call.operation().operator_name();
  if (!name.overload_name.empty()) return std::nullopt;
  const bool is_addmm = name.name == "aten::addmm";
  if (!is_addmm && name.name != "aten::matmul" && name.name != "aten::mm")
    return std::nullopt;
  const std::size_t weight_at = is_addmm ? 2 : 1;
  if (!is_weight(arguments[weight_at]) ||
      (is_addmm && (!is_one(arguments[3]) || !is_one(arguments[4])))) {
    return std::nullopt;
  }
  return LayerCall{
      LayerKind::transposed_linear,
      call.operation(),
      arguments[weight_at - 1].toTensor(),
      arguments[weight_at].toTensor(),
      is_addmm ? arguments[0].toTensor() : at::Tensor()};
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
  return transposed_call(call, [&](const c10::IValue& value) {
    return is_weight(value, LayerKind::transposed_linear);
  });
}

}  // namespace accelerate::detail
