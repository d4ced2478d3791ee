// Offloaded buffers that a forward changes, such as running statistics.
#include <algorithm>
#include <string_view>

#include <ATen/core/dispatch/Dispatcher.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/tiers/keeper/tier_keeper.h"

namespace accelerate::detail {

namespace {

// Normalisations change their running statistics while they train, which their
// schemas do not say.
bool changes_statistics(GatedCall& call) {
  const auto& schema = call.operation().schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const std::string_view name = schema[i].name();
    const c10::IValue& value = call.arguments()[i];
    if ((name == "training" || name == "use_input_stats") && value.isBool())
      return value.toBool();
  }
  return false;
}

bool is_statistic(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

void collect_units(
    const c10::IValue& value,
    const GateKeeper& keeper,
    std::vector<std::size_t>& units) {
  if (value.isList()) {
    for (const c10::IValue& item : value.toListRef())
      collect_units(item, keeper, units);
  } else if (const auto unit = GatedTensor::unit_of(value, keeper)) {
    units.push_back(*unit);
  }
}

bool is_own_memory(const OffloadedTensor& kept, const at::Tensor& value) {
  return kept.source.host.defined() && !kept.source.is_borrowed &&
      value.is_alias_of(kept.source.host);
}

}  // namespace

std::vector<std::size_t> TierKeeper::written_by(GatedCall& call) const {
  std::vector<std::size_t> written;
  const auto& schema = call.operation().schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    if (is_written(schema[i]) ||
        (is_statistic(schema[i]) && changes_statistics(call)))
      collect_units(call.arguments()[i], *this, written);
  }
  for (const std::size_t tensor : written) {
    if (weights_.tensors[tensor].is_buffer) continue;
    throw Error(format(
        "[big_model] {} would change \"{}\", which is offloaded, and the "
        "change would be lost: change it inside align_module_device(); only "
        "weights that are not offloaded can be trained",
        call.operation().operator_name().name,
        weights_.tensors[tensor].name));
  }
  return written;
}

at::Tensor& TierKeeper::fetched_value(std::size_t tensor) {
  const std::size_t unit = weights_.tensors[tensor].unit;
  const std::vector<std::size_t>& tensors = weights_.units[unit].tensors;
  const auto at = std::ranges::find(tensors, tensor);
  return units_.fetched(unit)
      .values[static_cast<std::size_t>(at - tensors.begin())];
}

// Files, the caller's tensors and buffers that others fetch into are never
// written to.
void TierKeeper::begin_write(std::size_t tensor) {
  const std::lock_guard lock(mutex_);
  at::Tensor& value = fetched_value(tensor);
  if (is_own_memory(weights_.tensors[tensor], value)) return;
  value = value.clone();
  gates_[tensor]->release();
  gates_[tensor]->fill(value);
}

void TierKeeper::end_write(std::size_t tensor) {
  const std::lock_guard lock(mutex_);
  OffloadedTensor& kept = weights_.tensors[tensor];
  const at::Tensor& value = fetched_value(tensor);
  if (!is_own_memory(kept, value))
    kept.source = {.host = on_host(value, kept.device)};
}

}  // namespace accelerate::detail
