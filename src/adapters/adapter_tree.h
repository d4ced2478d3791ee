#pragma once

#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "adapters/adapter_keeper.h"

namespace accelerate::detail {

/// A child that a layer gets for its adapters: "lora_A", with a child or a
/// parameter per adapter.
class AdapterDict final : public torch::nn::Module {
 public:
  explicit AdapterDict(std::shared_ptr<AdapterKeeper> keeper)
      : Module("AdapterDict"), keeper_(std::move(keeper)) {}

  [[nodiscard]] const std::shared_ptr<AdapterKeeper>& keeper() const {
    return keeper_;
  }
  /// Removes the child or parameter of this name, if there is one.
  void erase(const std::string& name);
  [[nodiscard]] bool is_empty() const {
    return children().empty() && parameters_.is_empty();
  }

 private:
  std::shared_ptr<AdapterKeeper> keeper_;
};

/// A module of the model with its dotted name.
struct NamedModule {
  std::string name;
  std::shared_ptr<torch::nn::Module> shared;
  torch::nn::Module* module = nullptr;
};

/// All modules of a model, the model itself first, without those of adapters.
std::vector<NamedModule> modules_without_adapters(torch::nn::Module& model);

/// The keeper of the model's adapters; null for a model that has none. Throws
/// ConfigError if the model is part of one that has adapters, or contains one.
std::shared_ptr<AdapterKeeper> keeper_in(torch::nn::Module& model);
/// The keeper; throws ConfigError for a model that has none.
AdapterKeeper& require_keeper(torch::nn::Module& model);
/// Throws ConfigError if the model has no adapter of this name.
KnownAdapter& require_adapter(AdapterKeeper& keeper, const std::string& name);

/// The module with a dotted name.
torch::nn::Module& module_at(torch::nn::Module& model, const std::string& name);
/// The parameter with a dotted name.
at::Tensor parameter_at(
    const torch::nn::Module& model,
    const std::string& name);

/// Joins "a" and "b" to "a.b"; the root's name is empty.
std::string joined(const std::string& module, const std::string& name);
/// The module's part of a dotted name: "a" of "a.b".
std::string module_part(const std::string& name);

/// Registers the tensors of a layer's adapter below the layer, under PEFT's
/// names.
void register_adapter(
    torch::nn::Module& layer,
    LayerKind kind,
    const std::string& name,
    LayerAdapter& adapter,
    const std::shared_ptr<AdapterKeeper>& keeper);
/// Removes what register_adapter() registered, or a copy of `modules_to_save`.
void unregister_adapter(torch::nn::Module& layer, const std::string& name);

/// Registers copies of all parameters of a module below it.
void register_copies(
    const NamedModule& module,
    const std::string& name,
    const std::shared_ptr<AdapterKeeper>& keeper);

/// Freezes the model, except for its active adapters and the biases that they
/// train.
void update_requires_grad(
    torch::nn::Module& model,
    const AdapterKeeper& keeper);

}  // namespace accelerate::detail
