#include "train/capture/step_key.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "optim/optimizers/step_facts.h"
#include "train/session/session.h"

namespace accelerate::detail {

namespace {

using Facts = std::vector<std::uint64_t>;

// Gives access to a module's own parameters without copying their names.
struct ModuleParts : torch::nn::Module {
  static const auto& parameters_of(const torch::nn::Module& module) {
    return module.*(&ModuleParts::parameters_);
  }
};

std::uint64_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}
std::uint64_t memory_of(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage()
      ? address_of(tensor.const_data_ptr())
      : 0;
}

void append(Facts& facts, std::string_view text) {
  facts.push_back(text.size());
  for (std::size_t i = 0; i < text.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t part = 0;
    std::memcpy(&part, text.data() + i, std::min(sizeof part, text.size() - i));
    facts.push_back(part);
  }
}

void append_shape(Facts& facts, const at::Tensor& tensor) {
  facts.push_back(tensor.defined());
  if (!tensor.defined()) return;
  facts.push_back(static_cast<std::uint64_t>(tensor.scalar_type()));
  facts.push_back(static_cast<std::uint64_t>(tensor.dim()));
  for (const std::int64_t size : tensor.sizes())
    facts.push_back(static_cast<std::uint64_t>(size));
  for (const std::int64_t stride : tensor.strides())
    facts.push_back(static_cast<std::uint64_t>(stride));
}

void append_inputs(Facts& facts, const NestedParts& inputs) {
  facts.push_back(inputs.tensors.size());
  for (const at::Tensor* const tensor : inputs.tensors)
    append_shape(facts, *tensor);
  for (const std::string& text : inputs.structure) append(facts, text);
  if (!inputs.lists.empty() || !inputs.values.empty())
    append(facts, leaves_to_bytes(inputs));
}

void append_modes(Facts& facts, const Session& session) {
  const at::DeviceType device = session.world.device().type();
  facts.push_back(at::GradMode::is_enabled());
  facts.push_back(at::globalContext().deterministicAlgorithms());
  facts.push_back(at::autocast::is_autocast_enabled(device));
  facts.push_back(
      static_cast<std::uint64_t>(at::autocast::get_autocast_dtype(device)));
  facts.push_back(session.prepared.models.size());
  facts.push_back(session.prepared.optimizers.size());
  facts.push_back(session.prepared.schedulers.size());
  if (!session.scaling.scaler) return;
  const GradScalerOptions& options = session.scaling.scaler->options();
  facts.push_back(std::bit_cast<std::uint64_t>(options.growth_factor));
  facts.push_back(std::bit_cast<std::uint64_t>(options.backoff_factor));
  facts.push_back(static_cast<std::uint64_t>(options.growth_interval));
}

// Appends what decides about backward() and the optimizers, as it will be once
// the function has begun its micro-steps.
void append_window(Facts& facts, const Session& session, int num_micro_steps) {
  StepClock clock = session.clock;
  const LoaderProgress* const loader = session.active_loader();
  const auto append_clock = [&] {
    facts.push_back(static_cast<std::uint64_t>(clock.window()));
    facts.push_back(static_cast<std::uint64_t>(clock.divisor()));
    facts.push_back(clock.sync_gradients());
    facts.push_back(clock.length() == 1);
    facts.push_back(clock.serial() == 0);
    facts.push_back(session.window.progress.aligned_serial == clock.serial());
    facts.push_back(session.window.progress.backward_serial == clock.serial());
  };
  facts.push_back(static_cast<std::uint64_t>(num_micro_steps));
  append_clock();
  for (int i = 0; i < num_micro_steps; ++i) {
    if (loader != nullptr && loader->num_micro_steps + i > 0)
      clock.note_batch(loader->num_micro_steps + i + 1);
    clock.begin_micro_step(
        loader != nullptr && loader->is_last_batch &&
        session.options.accumulation.sync_with_dataloader);
    append_clock();
  }
  for (const auto& optimizer : session.prepared.optimizers)
    facts.push_back(is_accumulating(*optimizer));
}

void append_module(StepKey& key, const torch::nn::Module& module) {
  key.kind.push_back(module.is_training());
  for (const auto& item : ModuleParts::parameters_of(module)) {
    const at::Tensor& parameter = item.value();
    if (!parameter.defined()) continue;
    key.kind.push_back(parameter.requires_grad());
    key.places.push_back(address_of(parameter.unsafeGetTensorImpl()));
    key.places.push_back(memory_of(parameter));
  }
  for (const at::Tensor& buffer : module.buffers(/*recurse=*/false)) {
    key.places.push_back(address_of(buffer.unsafeGetTensorImpl()));
    key.places.push_back(memory_of(buffer));
  }
  for (const auto& child : module.children()) append_module(key, *child);
}

}  // namespace

StepKey key_of_step(
    const Session& session,
    const NestedParts& inputs,
    const std::vector<at::Tensor>& parameters,
    int num_micro_steps) {
  StepKey key;
  append_inputs(key.kind, inputs);
  append_modes(key.kind, session);
  append_window(key.kind, session, num_micro_steps);
  for (const auto& model : session.prepared.models) {
    if (model->module) append_module(key, *model->module);
  }
  for (const auto& optimizer : session.prepared.optimizers) {
    if (optimizer->inner != nullptr)
      append_step_facts(*optimizer->inner, key.places);
  }
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    key.kind.push_back(parameter.requires_grad());
    key.kind.push_back(gradient.defined());
    key.gradients.push_back(memory_of(gradient));
  }
  return key;
}

}  // namespace accelerate::detail
