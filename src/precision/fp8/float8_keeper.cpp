#include "precision/fp8/float8_keeper.h"

#include <string_view>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include "activations/tape.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

bool is_recomputing() {
  return c10::impl::tls_is_dispatch_key_excluded(kRecordingKey);
}

// Whether an autograd formula calls the operator, rather than a forward or a
// recomputed forward.
bool is_in_backward_formula() {
  return torch::autograd::get_current_node() != nullptr && !is_recomputing();
}

bool is_unit_factor(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().equal(1);
}

bool calls_operator(const GatedCall& call, std::string_view name) {
  const auto& found = call.operation().operator_name();
  return found.name == name && found.overload_name.empty();
}

// Casts the input to the dtype in which autocast would compute a product.
at::Tensor with_autocast_dtype(const at::Tensor& input) {
  const c10::DeviceType device = input.device().type();
  if (!input.is_floating_point() || input.scalar_type() == at::kDouble ||
      !at::autocast::is_autocast_enabled(device)) {
    return input;
  }
  return input.to(at::autocast::get_autocast_dtype(device));
}

}  // namespace

std::size_t Float8Keeper::add(
    c10::intrusive_ptr<Float8Layer> layer,
    std::vector<std::int64_t> weight_sizes) {
  layers_.push_back(std::move(layer));
  weight_sizes_.push_back(std::move(weight_sizes));
  return layers_.size() - 1;
}

void Float8Keeper::begin_forward(bool in_float8) {
  ++num_forwards_;
  in_float8_ = in_float8;
}

void Float8Keeper::end_forward() { --num_forwards_; }

void Float8Keeper::abandon_forward() { num_forwards_ = 0; }

bool Float8Keeper::is_active() const {
  if (is_in_backward_formula()) return false;
  if (!only_in_forwards_) return true;
  return in_float8_ && (num_forwards_ > 0 || is_recomputing());
}

std::optional<Float8Keeper::Operand> Float8Keeper::operand(
    const c10::IValue& value) const {
  const TensorWatch* const watch = find_watch(value, this);
  if (watch == nullptr) return std::nullopt;
  const at::Tensor& tensor = value.toTensor();
  if (tensor.dim() != 2 || tensor.storage_offset() != 0) return std::nullopt;
  const std::int64_t rows = weight_sizes_[watch->unit][0];
  const std::int64_t columns = weight_sizes_[watch->unit][1];
  if (tensor.sizes() == at::IntArrayRef({rows, columns}) &&
      tensor.strides() == at::IntArrayRef({columns, 1})) {
    return Operand{watch->unit, false};
  }
  if (tensor.sizes() == at::IntArrayRef({columns, rows}) &&
      tensor.strides() == at::IntArrayRef({1, columns})) {
    return Operand{watch->unit, true};
  }
  return std::nullopt;
}

std::optional<Float8Keeper::Product> Float8Keeper::product_in(
    GatedCall& call) const {
  const std::span<c10::IValue> arguments = call.arguments();
  if (calls_operator(call, "aten::linear")) {
    const auto found = operand(arguments[1]);
    if (!found || found->is_transposed) return std::nullopt;
    return Product{
        found->unit,
        arguments[0].toTensor(),
        arguments[1].toTensor().t(),
        arguments[2].toOptional<at::Tensor>().value_or(at::Tensor())};
  }
  if (calls_operator(call, "aten::addmm")) {
    const auto found = operand(arguments[2]);
    if (!found || !found->is_transposed || !is_unit_factor(arguments[3]) ||
        !is_unit_factor(arguments[4])) {
      return std::nullopt;
    }
    return Product{
        found->unit,
        arguments[1].toTensor(),
        arguments[2].toTensor(),
        arguments[0].toTensor()};
  }
  if (calls_operator(call, "aten::matmul") ||
      calls_operator(call, "aten::mm")) {
    const auto found = operand(arguments[1]);
    if (!found || !found->is_transposed) return std::nullopt;
    return Product{
        found->unit, arguments[0].toTensor(), arguments[1].toTensor()};
  }
  return std::nullopt;
}

void Float8Keeper::call(GatedCall& call) {
  const std::optional<Product> product =
      is_active() ? product_in(call) : std::nullopt;
  if (!product || !product->input.is_floating_point() ||
      product->input.dim() == 0 || product->input.numel() == 0) {
    return call.run();
  }
  at::Tensor output = float8_product(
      with_autocast_dtype(product->input),
      product->transposed_weight,
      layers_[product->unit]);
  if (product->bias.defined())
    output = output + product->bias.to(output.scalar_type());
  call.replace(std::move(output));
}

}  // namespace accelerate::detail
