#include "big_model/quantize/weight_keeper.h"

#include <utility>

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/gate_entry.h"

namespace accelerate::detail {

namespace {

bool is_one(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().equal(1);
}

// Casts to the dtype that autocast would use for a product.
at::Tensor cast_for_product(const at::Tensor& input) {
  const c10::DeviceType device = input.device().type();
  if (!input.is_floating_point() || input.scalar_type() == at::kDouble ||
      !at::autocast::is_autocast_enabled(device)) {
    return input;
  }
  return input.to(at::autocast::get_autocast_dtype(device));
}

// Products with a weight on an accelerator are computed there; a weight in host
// memory is sent, as codes, to the input's device.
std::pair<at::Tensor, QuantizedWeight> brought_together(
    const at::Tensor& input,
    const QuantizedWeight& weight) {
  if (input.device() == weight.device()) return {input, weight};
  if (weight.device().is_cpu()) return {input, weight.to(input.device())};
  return {input.to(weight.device()), weight};
}

}  // namespace

void QuantizedWeightKeeper::keep(
    std::string name,
    const at::Tensor& parameter,
    QuantizedWeight weight) {
  parameter.set_requires_grad(false);
  parameter.mutable_grad() = at::Tensor();
  auto gate = make_gate(kept_.size(), name, parameter, weight.device());
  if (gate->is_filled()) gate->release();
  kept_.push_back({std::move(name), std::move(weight), std::move(gate)});
}

std::unique_ptr<GatedTensor> QuantizedWeightKeeper::make_gate(
    std::size_t unit,
    const std::string& name,
    const at::Tensor& parameter,
    c10::Device device) {
  const std::string subject =
      format("[big_model] the weight of \"{}\" is quantised; ", name);
  UnavailableMessages messages;
  messages.while_kept = subject +
      "read it with LibTorch's operators, or get its codes from "
      "QuantizedModel::weight()";
  messages.afterwards = subject +
      "keep the QuantizedModel that load_and_quantize_model() returned as long "
      "as the module";
  return std::make_unique<GatedTensor>(
      parameter, std::move(messages), *this, unit, device);
}

std::vector<CodeTensor> QuantizedWeightKeeper::code_tensors(
    std::size_t unit) const {
  const QuantizedParts& own = kept_[unit].weight.parts();
  std::vector<CodeTensor> parts;
  for (const auto& [name, tensor] : kept_[unit].weight.tensors()) {
    const bool is_large =
        tensor.is_same(own.codes) || tensor.is_same(own.absmax);
    parts.push_back({name, tensor, is_large});
  }
  return parts;
}

// The parameter reports the device on which its products are computed.
void QuantizedWeightKeeper::set_device(std::size_t unit, c10::Device device) {
  Kept& kept = kept_[unit];
  const at::Tensor parameter = kept.gate->tensor();
  if (kept.gate->is_bypassed() || parameter.device() == device) return;
  const GateEntry* const entry = entry_of(parameter);
  const std::vector<TensorWatch> watches = entry->watches;
  kept.gate.reset();
  replace_in_place(
      parameter,
      at::empty(
          parameter.sizes(),
          at::TensorOptions().dtype(parameter.dtype()).device(at::kMeta)));
  kept.gate = make_gate(unit, kept.name, parameter, device);
  for (const TensorWatch& watch : watches) watch_tensor(parameter, watch);
}

void QuantizedWeightKeeper::move(std::size_t unit, c10::Device device) {
  const at::NoGradGuard no_grad;
  if (kept_[unit].weight.device() != device)
    kept_[unit].weight = kept_[unit].weight.to(device);
  set_device(unit, device);
}

std::vector<at::Tensor> QuantizedWeightKeeper::take_tensors(
    std::size_t unit,
    c10::Device device) {
  const at::NoGradGuard no_grad;
  QuantizedParts& parts = kept_[unit].weight.parts_;
  for (at::Tensor* const tensor :
       {&parts.code_values, &parts.nested_absmax, &parts.nested_code_values}) {
    if (tensor->defined()) *tensor = tensor->to(device);
  }
  set_device(unit, device);
  std::vector<at::Tensor> taken;
  for (const CodeTensor& part : code_tensors(unit)) {
    if (!part.may_be_offloaded) continue;
    at::Tensor& own =
        part.tensor.is_same(parts.codes) ? parts.codes : parts.absmax;
    own = own.variable_data();
    taken.push_back(own);
  }
  return taken;
}

std::optional<std::size_t> QuantizedWeightKeeper::find(
    const at::Tensor& tensor) const {
  const auto unit = GatedTensor::unit_of(tensor, *this);
  if (!unit || kept_[*unit].gate->is_bypassed()) return std::nullopt;
  return unit;
}

std::optional<QuantizedWeightKeeper::Operand> QuantizedWeightKeeper::operand(
    const c10::IValue& value) const {
  const auto unit = GatedTensor::unit_of(value, *this);
  if (!unit) return std::nullopt;
  const at::Tensor& tensor = value.toTensor();
  const at::IntArrayRef sizes = kept_[*unit].weight.sizes();
  if (tensor.dim() != 2 || sizes.size() != 2 || tensor.storage_offset() != 0)
    return std::nullopt;
  const std::int64_t columns = sizes[1];
  if (tensor.sizes() == sizes &&
      tensor.strides() == at::IntArrayRef({columns, 1})) {
    return Operand{*unit, false};
  }
  if (tensor.size(0) == columns && tensor.size(1) == sizes[0] &&
      tensor.strides() == at::IntArrayRef({1, columns})) {
    return Operand{*unit, true};
  }
  return std::nullopt;
}

at::Tensor QuantizedWeightKeeper::product(
    const at::Tensor& input,
    const Operand& operand,
    const at::Tensor& bias) const {
  const auto [moved, weight] =
      brought_together(cast_for_product(input), kept_[operand.unit].weight);
  // A module multiplies by the transpose of its weight.
  if (operand.is_transposed)
    return quantized_linear(moved, weight, bias, kind_);
  return quantized_product(moved, weight, {.is_transposed = true})
      .to(moved.scalar_type());
}

std::optional<at::Tensor> QuantizedWeightKeeper::product_for(
    GatedCall& call) const {
  const std::string& name = call.operation().operator_name().name;
  const std::span<c10::IValue> arguments = call.arguments();
  if (name == "aten::linear") {
    auto found = operand(arguments[1]);
    if (!found || found->is_transposed) return std::nullopt;
    found->is_transposed = true;
    const auto bias = arguments[2].toOptional<at::Tensor>();
    return product(
        arguments[0].toTensor(), *found, bias.value_or(at::Tensor()));
  }
  if (name == "aten::addmm" &&
      call.operation().operator_name().overload_name.empty()) {
    const auto found = operand(arguments[2]);
    if (!found || !found->is_transposed || !is_one(arguments[3]) ||
        !is_one(arguments[4])) {
      return std::nullopt;
    }
    return product(arguments[1].toTensor(), *found, arguments[0].toTensor());
  }
  if ((name == "aten::matmul" || name == "aten::mm") &&
      call.operation().operator_name().overload_name.empty()) {
    const auto found = operand(arguments[1]);
    if (!found || operand(arguments[0])) return std::nullopt;
    return product(arguments[0].toTensor(), *found, {});
  }
  return std::nullopt;
}

c10::IValue QuantizedWeightKeeper::dequantized(const c10::IValue& value) const {
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector())
      tensors.push_back(dequantized(tensor).toTensor());
    return tensors;
  }
  const auto unit = GatedTensor::unit_of(value, *this);
  if (!unit) return value;
  const at::Tensor& tensor = value.toTensor();
  return kept_[*unit]
      .weight.dequantize(tensor.scalar_type())
      .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void QuantizedWeightKeeper::require_unchanged(GatedCall& call) const {
  const auto& arguments = call.operation().schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* const alias = arguments[i].alias_info();
    const auto unit = GatedTensor::unit_of(call.arguments()[i], *this);
    if (alias == nullptr || !alias->isWrite() || !unit) continue;
    throw ConfigError(format(
        "[big_model] {} cannot change the weight of \"{}\", which is "
        "quantised; train other parameters, such as an adapter's, or name the "
        "module in skip_modules",
        call.operation().operator_name().name,
        kept_[*unit].name));
  }
}

void QuantizedWeightKeeper::call(GatedCall& call) {
  if (std::optional<at::Tensor> result = product_for(call)) {
    call.replace(*std::move(result));
    return;
  }
  require_unchanged(call);
  const auto& arguments = call.operation().schema().arguments();
  const bool is_view =
      !arguments.empty() && arguments.front().alias_info() != nullptr;
  if (!is_view || !GatedTensor::unit_of(call.arguments().front(), *this)) {
    const at::NoGradGuard no_grad;
    for (c10::IValue& value : call.arguments()) value = dequantized(value);
  }
  call.run();
}

}  // namespace accelerate::detail
