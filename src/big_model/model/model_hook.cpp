#include <utility>

#include <accelerate/error.h>
#include <accelerate/hooks.h>

namespace accelerate {

ModelHook::~ModelHook() = default;

void ModelHook::init_hook(torch::nn::Module&) {}

std::vector<at::Tensor> ModelHook::pre_forward(
    torch::nn::Module&,
    std::vector<at::Tensor> inputs) {
  return inputs;
}

at::Tensor ModelHook::prepare_weight(
    torch::nn::Module&,
    const at::Tensor& weight) {
  return weight;
}

std::vector<at::Tensor> ModelHook::post_forward(
    torch::nn::Module&,
    std::vector<at::Tensor> outputs) {
  return outputs;
}

void ModelHook::detach_hook(torch::nn::Module&) {}

SequentialHook::SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks)
    : hooks_(std::move(hooks)) {
  for (const auto& hook : hooks_)
    if (!hook)
      throw ConfigError(
          "[big_model] hooks of a SequentialHook must not be null, but one is");
}

void SequentialHook::init_hook(torch::nn::Module& module) {
  for (const auto& hook : hooks_) hook->init_hook(module);
}

std::vector<at::Tensor> SequentialHook::pre_forward(
    torch::nn::Module& module,
    std::vector<at::Tensor> inputs) {
  for (const auto& hook : hooks_)
    inputs = hook->pre_forward(module, std::move(inputs));
  return inputs;
}

at::Tensor SequentialHook::prepare_weight(
    torch::nn::Module& module,
    const at::Tensor& weight) {
  at::Tensor prepared = weight;
  for (const auto& hook : hooks_)
    prepared = hook->prepare_weight(module, prepared);
  return prepared;
}

std::vector<at::Tensor> SequentialHook::post_forward(
    torch::nn::Module& module,
    std::vector<at::Tensor> outputs) {
  for (const auto& hook : hooks_)
    outputs = hook->post_forward(module, std::move(outputs));
  return outputs;
}

void SequentialHook::detach_hook(torch::nn::Module& module) {
  for (const auto& hook : hooks_) hook->detach_hook(module);
}

bool SequentialHook::no_grad() const {
  for (const auto& hook : hooks_)
    if (hook->no_grad()) return true;
  return false;
}

}  // namespace accelerate
