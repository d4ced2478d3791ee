#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace torch::nn {
class Module;
}

/// Code that runs before and after a module's forward, without a change of the
/// module.
namespace accelerate {

/// Base class of hooks; see add_hook_to_module() for when they are called. Every
/// function does nothing unless it is overridden. One object may be the hook of
/// several modules.
class ACCELERATE_API ModelHook {
 public:
  ModelHook() = default;
  ModelHook(const ModelHook&) = delete;
  ModelHook& operator=(const ModelHook&) = delete;
  virtual ~ModelHook();

  /// Called once, when the hook is added.
  virtual void init_hook(torch::nn::Module& module);
  /// Called with the forward's inputs; returns as many, which are used instead.
  virtual std::vector<at::Tensor> pre_forward(
      torch::nn::Module& module,
      std::vector<at::Tensor> inputs);
  /// Returns what the forward uses in place of a parameter or buffer of the
  /// module, which is unchanged: of the same shape, on any device, of any
  /// dtype. Gradients pass through what the function does.
  virtual at::Tensor prepare_weight(
      torch::nn::Module& module,
      const at::Tensor& weight);
  /// Called with the forward's outputs; returns as many, which are used
  /// instead.
  virtual std::vector<at::Tensor> post_forward(
      torch::nn::Module& module,
      std::vector<at::Tensor> outputs);
  /// Called once, when the hook is removed while the module exists.
  virtual void detach_hook(torch::nn::Module& module);

  /// Whether the forward records no graph.
  [[nodiscard]] virtual bool no_grad() const { return false; }
};

/// Calls several hooks one after another, in all functions in the same order.
/// Records no graph if one of them wants none.
class ACCELERATE_API SequentialHook : public ModelHook {
 public:
  explicit SequentialHook(std::vector<std::shared_ptr<ModelHook>> hooks);

  void init_hook(torch::nn::Module& module) override;
  std::vector<at::Tensor> pre_forward(
      torch::nn::Module& module,
      std::vector<at::Tensor> inputs) override;
  at::Tensor prepare_weight(torch::nn::Module& module, const at::Tensor& weight)
      override;
  std::vector<at::Tensor> post_forward(
      torch::nn::Module& module,
      std::vector<at::Tensor> outputs) override;
  void detach_hook(torch::nn::Module& module) override;
  [[nodiscard]] bool no_grad() const override;

  [[nodiscard]] const std::vector<std::shared_ptr<ModelHook>>& hooks() const {
    return hooks_;
  }

 private:
  std::vector<std::shared_ptr<ModelHook>> hooks_;
};

/// Has a hook called before and after a module's forward. The hook replaces one
/// that the module has; with `append`, it is called after that one.
///
/// C++ modules do not announce their forwards, so the hook is called for the
/// operators that a forward consists of: those that take a parameter or buffer
/// of the module itself (not of modules below) together with another tensor, do
/// not write to their arguments and return tensors. The other tensors are the
/// inputs, the results are the outputs. The layers of torch::nn that have
/// weights (linear, convolutions, embeddings, normalisations, PReLU, RNN, LSTM
/// and GRU) call one such operator in each forward, so their hooks are called
/// once, with the layer's tensor arguments and results. A module that calls
/// several (MultiheadAttention, one's own) has its hook called for each of them.
///
/// Also called when a checkpointed forward is recomputed; not in backwards. An
/// operator of other code that fits the description counts, and so do those of
/// another module that shares a tensor. Operators that the hook calls itself
/// call no hooks.
///
/// Cannot be hooked: modules without parameters and buffers of their own, such
/// as containers and activations; modules whose tensors are on the meta device
/// and are not offloaded, or are views with gaps; and modules that share all of
/// their tensors with a module that has a hook. Then this throws ConfigError.
///
/// The hook lives as long as the module's tensors, which it does not keep alive.
/// Replacing a tensor's data (Module::to, set_data) ends its hooks: add them
/// afterwards. Modules that are sharded or offloaded can be hooked.
ACCELERATE_API void add_hook_to_module(
    torch::nn::Module& module,
    std::shared_ptr<ModelHook> hook,
    bool append = false);

/// Removes a module's hook, and with `recurse` those of the modules below it. A
/// module without one stays as it is.
ACCELERATE_API void remove_hook_from_module(
    torch::nn::Module& module,
    bool recurse = false);

/// remove_hook_from_module() for the module and all modules below it.
ACCELERATE_API void remove_hook_from_submodules(torch::nn::Module& module);

/// The module's hook; null if it has none.
[[nodiscard]] ACCELERATE_API std::shared_ptr<ModelHook> hook_of(
    const torch::nn::Module& module);

}  // namespace accelerate
