#include "gate/weight_product.h"

#include <span>

#include <ATen/core/dispatch/Dispatcher.h>

namespace accelerate::detail {

namespace {

bool is_factor_one(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().equal(1);
}

bool is_transpose_of(
    const at::Tensor& tensor,
    const std::vector<std::int64_t>& shape) {
  return shape.size() == 2 && tensor.dim() == 2 &&
      tensor.storage_offset() == 0 && tensor.size(0) == shape[1] &&
      tensor.size(1) == shape[0] &&
      tensor.strides() == at::IntArrayRef({1, shape[1]});
}

// Returns the weight itself if it is the view's base, so that its gradient
// takes no detour; otherwise a view of the view.
at::Tensor weight_under(
    const at::Tensor& transposed,
    const std::vector<std::int64_t>& shape) {
  if (transposed.is_view()) {
    const at::Tensor base(transposed._base());
    if (base.sizes() == at::IntArrayRef(shape) && base.is_contiguous())
      return base;
  }
  return transposed.t();
}

// The argument at which an operator takes a matrix of inputs x outputs.
struct MatrixProduct {
  std::size_t weight_at = 0;
  bool has_bias = false;
};

std::optional<MatrixProduct> matrix_product_in(GatedCall& call) {
  const std::span<c10::IValue> arguments = call.arguments();
  const auto& name = call.operation().operator_name();
  if (!name.overload_name.empty()) return std::nullopt;
  if (name.name == "aten::matmul" || name.name == "aten::mm")
    return MatrixProduct{1, false};
  if (name.name != "aten::addmm" || !is_factor_one(arguments[3]) ||
      !is_factor_one(arguments[4])) {
    return std::nullopt;
  }
  return MatrixProduct{2, true};
}

}  // namespace

std::optional<WeightProduct> weight_product_in(
    GatedCall& call,
    c10::function_ref<const std::vector<std::int64_t>*(const c10::IValue&)>
        shape_of) {
  const std::span<c10::IValue> arguments = call.arguments();
  const auto& name = call.operation().operator_name();
  if (name.name == "aten::linear" && name.overload_name.empty()) {
    const auto* const shape = shape_of(arguments[1]);
    if (shape == nullptr ||
        arguments[1].toTensor().sizes() != at::IntArrayRef(*shape)) {
      return std::nullopt;
    }
    return WeightProduct{
        0,
        1,
        arguments[1].toTensor(),
        arguments[1].toTensor().t(),
        arguments[2].toOptional<at::Tensor>().value_or(at::Tensor())};
  }
  const auto product = matrix_product_in(call);
  if (!product) return std::nullopt;
  const auto* const shape = shape_of(arguments[product->weight_at]);
  if (shape == nullptr) return std::nullopt;
  const at::Tensor transposed = arguments[product->weight_at].toTensor();
  if (!is_transpose_of(transposed, *shape)) return std::nullopt;
  return WeightProduct{
      product->weight_at - 1,
      product->weight_at,
      weight_under(transposed, *shape),
      transposed,
      product->has_bias ? arguments[0].toTensor() : at::Tensor()};
}

std::optional<WeightProduct> transposed_product_in(
    GatedCall& call,
    c10::function_ref<const std::vector<std::int64_t>*(const c10::IValue&)>
        shape_of) {
  const std::span<c10::IValue> arguments = call.arguments();
  const auto product = matrix_product_in(call);
  if (!product) return std::nullopt;
  const auto* const shape = shape_of(arguments[product->weight_at]);
  if (shape == nullptr) return std::nullopt;
  const at::Tensor weight = arguments[product->weight_at].toTensor();
  // A square matrix and its transpose have the same sizes.
  if (weight.sizes() != at::IntArrayRef(*shape) ||
      (weight.numel() > 1 && is_transpose_of(weight, *shape))) {
    return std::nullopt;
  }
  return WeightProduct{
      product->weight_at - 1,
      product->weight_at,
      weight.t(),
      weight,
      product->has_bias ? arguments[0].toTensor() : at::Tensor()};
}

}  // namespace accelerate::detail
