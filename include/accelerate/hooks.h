#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace torch::nn {
class Module;
}

/// Code that runs before and after a module's forward, without changing the
/// module.
namespace accelerate {

/// Base class of hooks; see add_hook_to_module() for when they are called.
/// Every function is a no-op unless overridden. One object can be the hook of
/// several modules.
class ACCELERATE_API ModelHook {
 public:
  ModelHook() = default;
  ModelHook(const ModelHook&) = delete;
  ModelHook& operator=(const ModelHook&) = delete;
  virtual ~ModelHook();

  /// Called once, when the hook is added.
  virtual void init_hook(torch::nn::Module& module);
  /// Called with the forward's inputs; returns the same number of tensors,
  /// which replace them.
  virtual std::vector<at::Tensor> pre_forward(
      torch::nn::Module& module,
      std::vector<at::Tensor> inputs);
  /// Returns what the forward uses in place of a parameter or buffer of the
  /// module, which itself is unchanged: a tensor of the same shape, on any
  /// device, of any dtype. Gradients flow through this function.
  virtual at::Tensor prepare_weight(
      torch::nn::Module& module,
      const at::Tensor& weight);
  /// Called with the forward's outputs; returns the same number of tensors,
  /// which replace them.
  virtual std::vector<at::Tensor> post_forward(
      torch::nn::Module& module,
      std::vector<at::Tensor> outputs);
  /// Called once, when the hook is removed while the module exists.
  virtual void detach_hook(torch::nn::Module& module);

  /// Whether the forward records no graph.
  [[nodiscard]] virtual bool no_grad() const { return false; }
};

/// Calls several hooks one after another, in the same order in all functions.
/// Records no graph if any of them has no_grad().
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

  /// The hooks, in the order in which they are called.
  [[nodiscard]] const std::vector<std::shared_ptr<ModelHook>>& hooks() const {
    return hooks_;
  }

 private:
  std::vector<std::shared_ptr<ModelHook>> hooks_;
};

/// Adds a hook that is called before and after a module's forward. It replaces
/// the module's previous hook; with `append`, it is called after that one.
///
/// C++ modules do not announce their forwards, so the hook is called for the
/// operators that a forward consists of: those that take a parameter or buffer
/// of the module itself (not of modules below) together with another tensor, do
/// not write to their arguments and return tensors. The other tensors are the
/// inputs, the results are the outputs. The layers of torch::nn that have
/// weights (linear, convolutions, embeddings, normalisations, PReLU, RNN, LSTM
/// and GRU) call one such operator in each forward, so their hooks are called
/// once, with the layer's tensor arguments and results. Linear calls two unless
/// its input has two dimensions: it adds its bias in place. The hook takes them
/// as one, and so, in other code, the product with a weight of a module that
/// has biases is complete with the next operator on it; until then it has no
/// memory. A module that calls several (MultiheadAttention, or your own) has
/// its hook called for each of them.
///
/// The hook is also called when a checkpointed forward is recomputed, but not
/// in backward. An operator of other code that fits the description counts, and
/// so do those of another module that shares a tensor. Operators that the hook
/// itself calls do not call hooks.
///
/// Throws ConfigError for modules that cannot be hooked: those without
/// parameters and buffers of their own, such as containers and activations;
/// those whose tensors are on the meta device and not offloaded, or are views
/// with gaps; and those that share all of their tensors with a module that has
/// a hook.
///
/// The hook lives as long as the module's tensors, which it does not keep
/// alive. Replacing a tensor's data (Module::to, set_data) removes its hooks:
/// add them afterwards. Modules that are sharded or offloaded can be hooked.
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
