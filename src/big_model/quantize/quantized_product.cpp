#include "big_model/quantize/quantized_product.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/model/offload_keeper.h"
#include "big_model/quantize/block_codes.h"
#include "big_model/quantize/kernels/row_kernels.h"
#include "big_model/quantize/quantized_weight.h"
#include "gate/parallel_ranges.h"

namespace accelerate {

namespace detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor multiply_quantized_inputs(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    double threshold) {
  const QuantizedParts& parts = weight.parts();
  const Int8Inputs inputs = quantize_int8_inputs(input, threshold);
  at::Tensor result = int8_mm_dequant(
      int8_matmul(inputs.values, parts.codes), inputs.absmax, parts.absmax);
  if (inputs.outlier_columns && inputs.outlier_columns->numel() > 0) {
    const at::Tensor columns =
        parts.codes.index_select(1, *inputs.outlier_columns).to(at::kFloat) *
        (parts.absmax / 127).unsqueeze(1);
    result.addmm_(input.index_select(1, *inputs.outlier_columns), columns.t());
  }
  return result;
}

at::Tensor product_of_matrices(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    const ProductKind& kind) {
  if (kind.quantizes_inputs && !kind.is_transposed && input.numel() > 0) {
    return multiply_quantized_inputs(
        input.to(at::kFloat).contiguous(), weight, kind.threshold);
  }
  if (!weight.device().is_cpu()) {
    const at::Tensor values = weight.dequantize(input.scalar_type());
    return at::mm(input, kind.is_transposed ? values : values.t())
        .to(at::kFloat);
  }
  const at::Tensor floats = input.to(at::kFloat).contiguous();
  return kind.is_transposed ? multiply_by_columns(floats, weight)
                            : multiply_by_rows(floats, weight);
}

// Runs below autograd and autocast, which would otherwise see the operators
// inside.
at::Tensor product_of(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    const ProductKind& kind) {
  const at::NoGradGuard no_grad;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  const OffloadedUse use({weight.parts().codes, weight.parts().absmax});
  std::vector<std::int64_t> sizes = input.sizes().vec();
  const at::Tensor matrix = input.reshape({-1, sizes.back()});
  sizes.back() =
      kind.is_transposed ? weight.sizes().back() : weight.sizes().front();
  // The program may change the result in place, as it could not change a view
  // that a Function made.
  return at::_unsafe_view(product_of_matrices(matrix, weight, kind), sizes);
}

/// What the backward of a product needs.
struct SavedProduct : torch::CustomClassHolder {
  SavedProduct(QuantizedWeight saved_weight, ProductKind saved_kind)
      : weight(std::move(saved_weight)), kind(saved_kind) {}
  QuantizedWeight weight;
  ProductKind kind;
};

struct QuantizedProduct : torch::autograd::Function<QuantizedProduct> {
  static at::Tensor forward(
      AutogradContext* context,
      const at::Tensor& input,
      const c10::intrusive_ptr<SavedProduct>& product) {
    context->saved_data["product"] = c10::IValue::make_capsule(product);
    context->saved_data["dtype"] = input.scalar_type();
    return product_of(input, product->weight, product->kind);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto product = c10::static_intrusive_pointer_cast<SavedProduct>(
        context->saved_data["product"].toCapsule());
    const at::Tensor gradient = quantized_product(
        gradients.front(),
        product->weight,
        {.is_transposed = !product->kind.is_transposed});
    const auto dtype = context->saved_data["dtype"].toScalarType();
    return {gradient.to(dtype), at::Tensor()};
  }
};

void require_columns(const at::Tensor& input, const QuantizedWeight& weight) {
  if (weight.sizes().size() != 2) {
    throw ConfigError(format(
        "[big_model] a quantised weight must be a matrix to multiply by, but "
        "has {} dimensions",
        weight.sizes().size()));
  }
  if (input.dim() == 0 || input.size(-1) != weight.sizes().back()) {
    throw ConfigError(format(
        "[big_model] an input must have as many columns as the quantised "
        "weight, but has {} instead of {}",
        input.dim() == 0 ? 0 : input.size(-1),
        weight.sizes().back()));
  }
}

}  // namespace

at::Tensor quantized_product(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    const ProductKind& kind) {
  if (!at::GradMode::is_enabled() || !input.requires_grad())
    return product_of(input, weight, kind);
  return QuantizedProduct::apply(
      input, c10::make_intrusive<SavedProduct>(weight, kind));
}

at::Tensor quantized_linear(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    const at::Tensor& bias,
    const ProductKind& kind) {
  require_columns(input, weight);
  at::Tensor result = quantized_product(input, weight, kind);
  if (bias.defined()) result = result + bias.to(at::kFloat);
  return result.to(input.scalar_type());
}

}  // namespace detail

at::Tensor QuantizedWeight::linear(
    const at::Tensor& input,
    const at::Tensor& bias) const {
  return detail::quantized_linear(input, *this, bias);
}

at::Tensor llm_int8_linear(
    const at::Tensor& input,
    const QuantizedWeight& weight,
    double threshold,
    const at::Tensor& bias) {
  if (weight.type() != QuantizationType::int8) {
    throw ConfigError(detail::format(
        "[big_model] the weight of llm_int8_linear() must be int8, but is {}",
        detail::name_of(weight.type())));
  }
  return detail::quantized_linear(
      input, weight, bias, {.quantizes_inputs = true, .threshold = threshold});
}

}  // namespace accelerate

namespace accelerate::detail {

namespace {

constexpr std::int64_t kRowsOfThread = 16;

}  // namespace

Int8Inputs quantize_int8_inputs(const at::Tensor& input, double threshold) {
  Int8Inputs result;
  at::Tensor values = input.to(at::kFloat);
  if (threshold > 0) {
    const at::Tensor is_outlier = values.abs() >= threshold;
    const at::Tensor is_column = is_outlier.any(0);
    result.outlier_columns = is_column.nonzero().view(-1);
    // A row's scale covers all its ordinary values, including those in outlier
    // columns.
    values = values.masked_fill(is_outlier, 0);
    result.absmax = values.abs().amax(1);
    values = values.masked_fill(is_column, 0);
  } else {
    result.absmax = values.abs().amax(1);
  }
  const at::Tensor factors =
      at::where(result.absmax > 0, 127.0 / result.absmax, 0.0);
  result.values = (values * factors.unsqueeze(1)).round().to(at::kChar);
  return result;
}

at::Tensor int8_matmul(const at::Tensor& a, const at::Tensor& b) {
  // Floats hold the sums of up to 1,040 products exactly.
  if (!a.is_cpu()) return at::mm(a.to(at::kFloat), b.to(at::kFloat).t());
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  const std::int64_t columns = left.size(1);
  at::Tensor product = at::empty(
      {right.size(0), left.size(0)}, at::TensorOptions().dtype(at::kInt));
  for_parallel_ranges(
      right.size(0), kRowsOfThread, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          row_kernels().multiply_int8_int8(
              right.const_data_ptr<std::int8_t>() + row * columns,
              1,
              left.const_data_ptr<std::int8_t>(),
              left.size(0),
              columns,
              product.mutable_data_ptr<std::int32_t>() + row * left.size(0));
        }
      });
  return product.t().contiguous();
}

at::Tensor int8_mm_dequant(
    const at::Tensor& product,
    const at::Tensor& row_absmax,
    const at::Tensor& column_absmax) {
  return product.to(at::kFloat) *
      (row_absmax.unsqueeze(1) * column_absmax.unsqueeze(0)) *
      (1.0 / (127 * 127));
}

}  // namespace accelerate::detail
