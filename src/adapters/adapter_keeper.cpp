#include "adapters/adapter_keeper.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>

#include "gate/mode_keys.h"
#include "gate/stop_at_gates.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

// Thread-local because each thread computes a forward of its own.
thread_local bool is_computing = false;

// While alive, this thread's operators are the adapters' own: gates of other
// keepers apply, adapters do not.
class OwnOperators {
 public:
  OwnOperators() : before_(std::exchange(is_computing, true)) {}
  ~OwnOperators() { is_computing = before_; }
  OwnOperators(const OwnOperators&) = delete;
  OwnOperators& operator=(const OwnOperators&) = delete;

 private:
  bool before_;
  StopAtGates stop_;
};

// Whether an autograd formula calls the operator, rather than a forward or a
// recomputed forward.
bool is_in_backward_formula() {
  return torch::autograd::get_current_node() != nullptr &&
      !c10::impl::tls_is_dispatch_key_excluded(kRecordingKey);
}

bool is_cast(const c10::OperatorHandle& operation) {
  const std::string& name = operation.operator_name().name;
  return name == "aten::to" || name == "aten::_to_copy";
}

// A view of `own` with the same sizes and strides as `used`.
at::Tensor viewed_like(const at::Tensor& own, const at::Tensor& used) {
  const at::Tensor copy = own.scalar_type() == used.scalar_type()
      ? own
      : own.to(used.scalar_type());
  if (used.sizes() == copy.sizes() && used.strides() == copy.strides())
    return copy;
  if (copy.dim() == 2) {
    at::Tensor transposed = copy.t();
    if (used.sizes() == transposed.sizes() &&
        used.strides() == transposed.strides()) {
      return transposed;
    }
  }
  return copy.as_strided(used.sizes(), used.strides(), used.storage_offset());
}

}  // namespace

AdaptedLayer& AdapterKeeper::add_layer(
    AdaptedLayer layer,
    const at::Tensor& weight) {
  units_.push_back({std::make_unique<AdaptedLayer>(std::move(layer)), nullptr});
  watch_tensor(weight, {shared_from_this(), units_.size() - 1, this});
  return *units_.back().layer;
}

CopiedParameter& AdapterKeeper::add_copied(
    CopiedParameter parameter,
    const at::Tensor& original) {
  units_.push_back(
      {nullptr, std::make_unique<CopiedParameter>(std::move(parameter))});
  watch_tensor(original, {shared_from_this(), units_.size() - 1, this});
  return *units_.back().copied;
}

std::vector<AdaptedLayer*> AdapterKeeper::layers() const {
  std::vector<AdaptedLayer*> found;
  for (const Unit& unit : units_)
    if (unit.layer) found.push_back(unit.layer.get());
  return found;
}

std::vector<CopiedParameter*> AdapterKeeper::all_copied() const {
  std::vector<CopiedParameter*> found;
  for (const Unit& unit : units_)
    if (unit.copied) found.push_back(unit.copied.get());
  return found;
}

AdaptedLayer* AdapterKeeper::layer(const std::string& name) const {
  for (AdaptedLayer* const each : layers())
    if (each->name == name) return each;
  return nullptr;
}

CopiedParameter* AdapterKeeper::copied(const std::string& name) const {
  for (CopiedParameter* const each : all_copied())
    if (each->name == name) return each;
  return nullptr;
}

void AdapterKeeper::forget(const std::string& name, const at::Tensor& tensor) {
  for (Unit& unit : units_) {
    if ((unit.layer && unit.layer->name == name) ||
        (unit.copied && unit.copied->name == name)) {
      unit = {};
    }
  }
  unwatch_tensor(tensor, this);
}

bool AdapterKeeper::is_active(const std::string& name) const {
  return std::ranges::find(active, name) != active.end();
}

std::vector<std::string> AdapterKeeper::merged_names() const {
  std::vector<std::string> names;
  for (const auto& [name, known] : adapters) {
    const bool is_merged =
        std::ranges::any_of(units_, [&name = name](const Unit& unit) {
          return unit.layer &&
              std::ranges::any_of(
                     unit.layer->merged, [&](const MergedAdapter& each) {
                       return each.name == name;
                     });
        });
    if (is_merged) names.push_back(name);
  }
  return names;
}

bool AdapterKeeper::draws_random_numbers() const {
  return std::ranges::any_of(active, [this](const std::string& name) {
    return adapters.at(name).options.dropout > 0;
  });
}

AddedProducts::Layer AdapterKeeper::added_to(std::size_t unit) const {
  const Unit& found = units_[unit];
  Layer added;
  if (found.copied) {
    added.complaint = "not have a trained copy (modules_to_save)";
    return added;
  }
  const AdaptedLayer& layer = *found.layer;
  added.is_embedding = layer.known.kind == LayerKind::embedding;
  if (layer.known.kind == LayerKind::convolution)
    added.complaint = "not be a convolution with adapters";
  if (!layer.merged.empty()) added.complaint = "not have merged adapters";
  for (const auto& [name, adapter] : layer.adapters) {
    added.first.push_back(adapter.a);
    added.second.push_back(adapter.b);
    if (adapter.magnitude.defined())
      added.complaint = "not have adapters with use_dora";
  }
  return added;
}

void AdapterKeeper::divide(std::size_t unit, DividedProducts how) {
  AdaptedLayer& layer = *units_[unit].layer;
  layer.known_slice = {layer.known.kind, how.weight_sizes};
  layer.division = std::move(how);
}

const AdapterKeeper::Unit* AdapterKeeper::unit_of(
    const c10::IValue& value) const {
  const TensorWatch* const watch = find_watch(value, this);
  return watch == nullptr ? nullptr : &units_[watch->unit];
}

at::Tensor AdapterKeeper::copy_for(const c10::IValue& value) const {
  const Unit* const unit = unit_of(value);
  if (unit == nullptr || !unit->copied) return {};
  for (const std::string& name : active) {
    const auto found = unit->copied->copies.find(name);
    if (found != unit->copied->copies.end())
      return viewed_like(found->second, value.toTensor());
  }
  return {};
}

// An operator that takes another tensor as well, and changes nothing, is part
// of a forward; one that takes the parameter alone may save or move it.
bool AdapterKeeper::may_use_copies(GatedCall& call) const {
  const bool has_copies = std::ranges::any_of(
      units_, [](const Unit& unit) { return unit.copied != nullptr; });
  if (!has_copies || call.operation().schema().is_mutable()) return false;
  const auto is_input = [this](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() &&
        unit_of(value) == nullptr;
  };
  for (const c10::IValue& value : call.arguments()) {
    const auto items =
        value.isList() ? value.toListRef() : c10::ArrayRef<c10::IValue>(value);
    if (std::ranges::any_of(items, is_input)) return true;
  }
  return false;
}

// The value with copies in place of parameters; nothing if it contains none.
std::optional<c10::IValue> AdapterKeeper::with_copies(
    const c10::IValue& value) const {
  if (!value.isList()) {
    at::Tensor copy = copy_for(value);
    if (!copy.defined()) return std::nullopt;
    return copy;
  }
  if (!value.isTensorList() && !value.isOptionalTensorList())
    return std::nullopt;
  c10::List<c10::IValue> items = value.toList().copy();
  bool has_copy = false;
  for (std::size_t i = 0; i < items.size(); ++i) {
    at::Tensor copy = copy_for(items.get(i));
    if (!copy.defined()) continue;
    items.set(i, std::move(copy));
    has_copy = true;
  }
  if (!has_copy) return std::nullopt;
  return c10::IValue(std::move(items));
}

bool AdapterKeeper::run_with_copies(GatedCall& call) const {
  if (!may_use_copies(call)) return false;
  torch::jit::Stack stack(call.arguments().begin(), call.arguments().end());
  bool is_replaced = false;
  for (c10::IValue& value : stack) {
    std::optional<c10::IValue> own = with_copies(value);
    if (!own) continue;
    value = *std::move(own);
    is_replaced = true;
  }
  if (!is_replaced) return false;
  if (call.operation().schema().returns().size() == 1) {
    // Copies may have keepers of their own.
    const StopAtGates stop;
    call.operation().callBoxed(stack);
    call.replace(std::move(stack.front()));
    return true;
  }
  std::ranges::copy(stack, call.arguments().begin());
  call.forget_keys();
  call.run();
  return true;
}

void AdapterKeeper::note_other_uses(GatedCall& call) const {
  const std::string& name = call.operation().operator_name().name;
  constexpr std::string_view kLayers[] = {
      "aten::linear",
      "aten::addmm",
      "aten::matmul",
      "aten::mm",
      "aten::embedding"};
  if (std::ranges::find(kLayers, name) == std::end(kLayers)) {
    return;
  }
  for (const c10::IValue& value : call.arguments()) {
    const Unit* const unit = unit_of(value);
    if (unit != nullptr && unit->layer) unit->layer->has_other_use = true;
  }
}

// Module::to() replaces a parameter's data by what this operator returns.
void AdapterKeeper::watch_cast(const at::Tensor& cast, std::size_t unit) {
  if (!cast.has_storage() || !cast.is_non_overlapping_and_dense() ||
      find_watch(cast, this) != nullptr) {
    return;
  }
  watch_tensor(cast, {shared_from_this(), unit, this});
}

at::Tensor AdapterKeeper::with_adapters(
    const LayerCall& call,
    const AdaptedLayer& layer,
    at::Tensor result) const {
  const OwnOperators own;
  const at::ScalarType dtype = result.scalar_type();
  for (const std::string& name : active) {
    const auto found = layer.adapters.find(name);
    if (found != layer.adapters.end())
      result = with_adapter(call, result, found->second);
  }
  return result.scalar_type() == dtype ? result : result.to(dtype);
}

void AdapterKeeper::call(GatedCall& call) {
  if (is_computing || is_in_backward_formula()) return call.run();
  if (is_cast(call.operation())) {
    const TensorWatch* const watch = find_watch(call.arguments().front(), this);
    const std::size_t unit = watch == nullptr ? 0 : watch->unit;
    const bool is_own = watch != nullptr;
    call.run();
    if (is_own) watch_cast(call.results().front().toTensor(), unit);
    return;
  }
  if (num_disabled > 0) return call.run();
  if (run_with_copies(call)) return;
  std::optional<LayerCall> found = layer_call_in(
      call, [this](const c10::IValue& value) -> const KnownLayer* {
        const Unit* const unit = unit_of(value);
        if (unit == nullptr || !unit->layer) return nullptr;
        return is_divided(*unit->layer) ? &unit->layer->known_slice
                                        : &unit->layer->known;
      });
  if (!found) note_other_uses(call);
  call.run();
  if (!found) return;
  const Unit* const unit = unit_of(found->weight);
  if (unit == nullptr || !unit->layer->merged.empty()) return;
  if (is_divided(*unit->layer)) found->division = &*unit->layer->division;
  c10::IValue& result = call.results().front();
  result = with_adapters(*found, *unit->layer, result.toTensor());
}

}  // namespace accelerate::detail
