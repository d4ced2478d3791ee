#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/log.h>
#include <accelerate/module_tensors.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "big_model/model/offload_keeper.h"
#include "gate/coded_weights.h"
#include "gate/gate_entry.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace detail {

OffloadedUnit offloaded_unit(const at::Tensor& tensor) {
  const GateEntry* const entry = entry_of(tensor);
  if (entry == nullptr || entry->keeper == nullptr) return {};
  OffloadKeeper* const keeper = entry->keeper->as_offload_keeper();
  if (keeper == nullptr || !keeper->is_offloaded(entry->unit)) return {};
  return {keeper, entry->unit};
}

OffloadedUse::OffloadedUse(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    const OffloadedUnit unit = offloaded_unit(tensor);
    if (unit.keeper != nullptr && unit.keeper->begin_use(unit.unit))
      used_.push_back(unit);
  }
}

OffloadedUse::~OffloadedUse() {
  for (const OffloadedUnit& each : used_) each.keeper->end_use(each.unit);
}

namespace {

// Whether a weight is offloaded now, itself or as codes.
bool is_away(const at::Tensor& tensor) {
  if (offloaded_unit(tensor).keeper != nullptr) return true;
  const CodedUnit codes = coded_unit(tensor);
  if (codes.keeper == nullptr) return false;
  const std::vector<CodeTensor> parts = codes.keeper->code_tensors(codes.unit);
  return std::ranges::any_of(parts, [](const CodeTensor& part) {
    return offloaded_unit(part.tensor).keeper != nullptr;
  });
}

}  // namespace

}  // namespace detail

struct AlignModuleDevice::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    const at::NoGradGuard no_grad;
    try {
      for (const detail::OffloadedUnit& each : held)
        each.keeper->put_back(each.unit);
      for (const auto& [tensor, before] : moved)
        detail::replace_in_place(tensor, tensor.detach().to(before));
    } catch (const std::exception& error) {
      Logger().log(
          LogLevel::error,
          "big_model",
          detail::format(
              "weights are not back where they were before an "
              "AlignModuleDevice: {}",
              error.what()));
    }
  }

  std::vector<detail::OffloadedUnit> held;
  std::vector<std::pair<at::Tensor, c10::Device>> moved;
};

AlignModuleDevice::AlignModuleDevice(
    torch::nn::Module& module,
    std::optional<c10::Device> execution_device)
    : state_(std::make_unique<State>()) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : named_module_tensors(module)) {
    const detail::OffloadedUnit unit = detail::offloaded_unit(tensor);
    if (unit.keeper != nullptr) {
      unit.keeper->hold(unit.unit, execution_device);
      state_->held.push_back(unit);
    } else if (
        execution_device && tensor.device() != *execution_device &&
        !tensor.is_meta()) {
      const c10::Device before = tensor.device();
      detail::replace_in_place(tensor, tensor.detach().to(*execution_device));
      state_->moved.emplace_back(tensor, before);
    }
  }
}

AlignModuleDevice::~AlignModuleDevice() = default;

bool verify_device_map(const torch::nn::Module& module) {
  const auto has_map = [](const at::Tensor& tensor) {
    return tensor.defined() && detail::num_places_of(tensor) > 1;
  };
  const auto parameters = module.parameters();
  const auto buffers = module.buffers();
  return std::ranges::any_of(parameters, has_map) ||
      std::ranges::any_of(buffers, has_map);
}

bool has_offloaded_params(const torch::nn::Module& module) {
  for (const auto& [name, tensor] : named_module_tensors(module)) {
    if (detail::is_away(tensor)) return true;
  }
  return false;
}

}  // namespace accelerate
