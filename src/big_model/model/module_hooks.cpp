#include <accelerate/hooks.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/backward_pass.h"
#include "gate/gate_entry.h"
#include "gate/pending_product.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace detail {

namespace {

// Whether an operator could be a forward, whatever its arguments are.
bool is_pure(const c10::FunctionSchema& schema) {
  if (schema.is_mutable()) return false;
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
        result.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

// Calls a module's hook for the operators on the module's tensors.
class HookKeeper : public GateKeeper,
                   public std::enable_shared_from_this<HookKeeper> {
 public:
  HookKeeper(torch::nn::Module& module, std::shared_ptr<ModelHook> hook)
      : module_(&module),
        owner_(module.weak_from_this()),
        is_owned_(!owner_.expired()),
        hook_(std::move(hook)) {}

  [[nodiscard]] const std::shared_ptr<ModelHook>& hook() const { return hook_; }
  void set_hook(std::shared_ptr<ModelHook> hook) { hook_ = std::move(hook); }

  void call(GatedCall& call) override {
    const auto held = owner_.lock();
    const bool module_is_gone = is_owned_ && !held;
    if (module_is_gone || runs_backward() ||
        !is_pure(call.operation().schema())) {
      call.run();
      return;
    }
    Tensors inputs;
    Tensors weights;
    for (c10::IValue& value : call.arguments()) sort(value, inputs, weights);
    if (inputs.values.empty()) {
      call.run();
      return;
    }
    forward(call, inputs, weights);
  }

 private:
  // Tensors among the arguments or results, and how to replace them.
  struct Tensors {
    struct Place {
      c10::IValue* value;
      /// The position in a list; the value is the tensor itself without.
      std::optional<std::size_t> index;
    };
    std::vector<at::Tensor> values;
    std::vector<Place> places;

    void add(const at::Tensor& tensor, Place place) {
      values.push_back(tensor);
      places.push_back(place);
    }

    // Returns whether one of them is replaced.
    bool put(const std::vector<at::Tensor>& replacements) {
      bool is_replaced = false;
      for (std::size_t i = 0; i < places.size(); ++i) {
        const Place& place = places[i];
        if (replacements[i].is_same(values[i])) continue;
        is_replaced = true;
        if (place.index) {
          place.value->toList().set(*place.index, replacements[i]);
        } else {
          *place.value = replacements[i];
        }
      }
      return is_replaced;
    }
  };

  void sort(c10::IValue& value, Tensors& inputs, Tensors& weights) const {
    const auto add = [&](const c10::IValue& item,
                         std::optional<std::size_t> index) {
      if (!item.isTensor() || !item.toTensor().defined()) return;
      Tensors& tensors =
          find_watch(item, module_) != nullptr ? weights : inputs;
      tensors.add(item.toTensor(), {&value, index});
    };
    if (!value.isList()) {
      add(value, std::nullopt);
      return;
    }
    const auto items = value.toListRef();
    for (std::size_t i = 0; i < items.size(); ++i) add(items[i], i);
  }

  void forward(GatedCall& call, Tensors& inputs, Tensors& weights) {
    // Holds the hook if it removes itself.
    const std::shared_ptr<ModelHook> hook = hook_;
    const bool may_have_bias = is_product(call);
    bool is_replaced =
        put(inputs, hook->pre_forward(*module_, inputs.values), "pre_forward");
    is_replaced |= prepare(*hook, weights);
    if (is_replaced) call.forget_keys();
    run(*hook, call);
    if (may_have_bias && entry_of(call.results().front()) == nullptr) {
      at::Tensor product = call.results().front().toTensor();
      call.results().front() =
          PendingProduct::placeholder(std::move(product), completion(hook));
      return;
    }
    finish(*hook, call.results());
  }

  // Whether the program may add one of the module's tensors to the result next,
  // which is part of the forward then.
  [[nodiscard]] bool is_product(GatedCall& call) const {
    const auto& name = call.operation().operator_name();
    if (name.name != "aten::matmul" || !name.overload_name.empty() ||
        find_watch(call.arguments()[1], module_) == nullptr) {
      return false;
    }
    const auto parameters = module_->parameters(/*recurse=*/false);
    return std::ranges::any_of(parameters, [&](const at::Tensor& each) {
      return each.defined() && each.dim() == 1 &&
          find_watch(each, module_) != nullptr;
    });
  }

  [[nodiscard]] LayerCompletion completion(
      const std::shared_ptr<ModelHook>& hook) {
    const auto self = shared_from_this();
    // The program may release the module before it uses the result.
    const auto held = owner_.lock();
    return {
        .is_bias =
            [self](const c10::IValue& value) {
              return find_watch(value, self->module_) != nullptr;
            },
        .add_bias =
            [self, hook, held](GatedCall& call) {
              Tensors bias;
              bias.add(
                  call.arguments()[1].toTensor(),
                  {&call.arguments()[1], std::nullopt});
              if (self->prepare(*hook, bias)) call.forget_keys();
              run(*hook, call);
            },
        .finish =
            [self, hook, held](const at::Tensor& result) {
              c10::IValue finished = result;
              self->finish(*hook, {&finished, 1});
              return finished.toTensor();
            }};
  }

  // Returns whether a weight is replaced.
  bool prepare(ModelHook& hook, Tensors& weights) const {
    std::vector<at::Tensor> prepared;
    for (const at::Tensor& weight : weights.values)
      prepared.push_back(hook.prepare_weight(*module_, weight));
    return put(weights, prepared, "prepare_weight");
  }

  static void run(const ModelHook& hook, GatedCall& call) {
    std::optional<at::NoGradGuard> no_grad;
    if (hook.no_grad()) no_grad.emplace();
    call.run();
  }

  void finish(ModelHook& hook, std::span<c10::IValue> results) const {
    Tensors outputs;
    for (c10::IValue& value : results) {
      Tensors none;
      sort(value, outputs, none);
    }
    put(outputs, hook.post_forward(*module_, outputs.values), "post_forward");
  }

  bool put(
      Tensors& tensors,
      const std::vector<at::Tensor>& replacements,
      const char* function) const {
    if (replacements.size() != tensors.values.size()) {
      throw ConfigError(format(
          "[big_model] {} of the hook of {} must return as many tensors as it "
          "gets, but got {} and returned {}",
          function,
          module_->name(),
          tensors.values.size(),
          replacements.size()));
    }
    return tensors.put(replacements);
  }

  torch::nn::Module* module_;
  /// Tells whether the module exists, if a shared pointer owns it.
  std::weak_ptr<torch::nn::Module> owner_;
  bool is_owned_;
  std::shared_ptr<ModelHook> hook_;
};

std::vector<at::Tensor> own_tensors(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& each : module.parameters(/*recurse=*/false))
    if (each.defined()) tensors.push_back(each);
  for (const at::Tensor& each : module.buffers(/*recurse=*/false))
    if (each.defined()) tensors.push_back(each);
  return tensors;
}

std::shared_ptr<HookKeeper> find_keeper(const torch::nn::Module& module) {
  for (const at::Tensor& tensor : own_tensors(module)) {
    if (const TensorWatch* const watch = find_watch(tensor, &module))
      return std::static_pointer_cast<HookKeeper>(watch->keeper);
  }
  return nullptr;
}

bool can_watch(const at::Tensor& tensor) {
  if (is_watched(tensor)) return false;
  return keeper_of(tensor) != nullptr ||
      (!tensor.is_meta() && tensor.layout() == at::kStrided &&
       tensor.is_non_overlapping_and_dense());
}

void watch_module(
    torch::nn::Module& module,
    const std::shared_ptr<HookKeeper>& keeper) {
  std::vector<at::Tensor> tensors = own_tensors(module);
  std::erase_if(
      tensors, [](const at::Tensor& tensor) { return !can_watch(tensor); });
  if (tensors.empty()) {
    throw ConfigError(format(
        "[big_model] {} cannot have a hook: hooks are called for operators on "
        "a module's own parameters and buffers, but it has none that are in "
        "memory or offloaded, dense, and not shared with a module that has a "
        "hook; hook the modules below or beside it that have weights",
        module.name()));
  }
  for (const at::Tensor& tensor : tensors)
    watch_tensor(tensor, {keeper, 0, &module});
}

}  // namespace

}  // namespace detail

void add_hook_to_module(
    torch::nn::Module& module,
    std::shared_ptr<ModelHook> hook,
    bool append) {
  if (!hook) throw ConfigError("[big_model] a module's hook must not be null");
  const auto keeper = detail::find_keeper(module);
  if (!keeper) {
    hook->init_hook(module);
    detail::watch_module(
        module, std::make_shared<detail::HookKeeper>(module, std::move(hook)));
    return;
  }
  const std::shared_ptr<ModelHook> before = keeper->hook();
  if (!append && before != hook) before->detach_hook(module);
  if (append || before != hook) hook->init_hook(module);
  keeper->set_hook(
      append ? std::make_shared<SequentialHook>(
                   std::vector<std::shared_ptr<ModelHook>>{before, hook})
             : std::move(hook));
}

void remove_hook_from_module(torch::nn::Module& module, bool recurse) {
  const auto keeper = detail::find_keeper(module);
  if (keeper) {
    for (const at::Tensor& tensor : detail::own_tensors(module))
      detail::unwatch_tensor(tensor, &module);
    keeper->hook()->detach_hook(module);
  }
  if (!recurse) return;
  for (const auto& child : module.children())
    if (child) remove_hook_from_module(*child, /*recurse=*/true);
}

void remove_hook_from_submodules(torch::nn::Module& module) {
  remove_hook_from_module(module, /*recurse=*/true);
}

std::shared_ptr<ModelHook> hook_of(const torch::nn::Module& module) {
  const auto keeper = detail::find_keeper(module);
  return keeper ? keeper->hook() : nullptr;
}

}  // namespace accelerate
