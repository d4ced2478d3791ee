#include <accelerate/layerwise_casting.h>

#include <algorithm>
#include <regex>
#include <string_view>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/conv.h>

#include <accelerate/error.h>
#include <accelerate/hooks.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "gate/gate_entry.h"
#include "gate/linear_weight.h"
#include "modules/module_tree.h"

namespace accelerate {

namespace {

namespace nn = torch::nn;

class LayerwiseCastingHook : public ModelHook {
 public:
  LayerwiseCastingHook(
      c10::ScalarType storage_dtype,
      c10::ScalarType compute_dtype,
      bool non_blocking)
      : storage_dtype_(storage_dtype),
        compute_dtype_(compute_dtype),
        non_blocking_(non_blocking) {}

  void init_hook(nn::Module& module) override {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : module.parameters(/*recurse=*/false)) {
      if (!parameter.defined() || !parameter.is_floating_point()) continue;
      if (detail::keeper_of(parameter) != nullptr) {
        throw ConfigError(detail::format(
            "[big_model] weights of {} must not be offloaded or sharded to be "
            "stored in another dtype, but are; cast them first",
            module.name()));
      }
      detail::replace_in_place(
          parameter, parameter.detach().to(storage_dtype_));
    }
  }

  at::Tensor prepare_weight(nn::Module&, const at::Tensor& weight) override {
    return weight.to(compute_dtype_, non_blocking_);
  }

 private:
  c10::ScalarType storage_dtype_;
  c10::ScalarType compute_dtype_;
  bool non_blocking_;
};

// Modules of exported programs have the names of Python's classes.
bool is_exported_convolution(const nn::Module& module) {
  static constexpr std::string_view kClasses[] = {
      "Conv1d",
      "Conv2d",
      "Conv3d",
      "ConvTranspose1d",
      "ConvTranspose2d",
      "ConvTranspose3d"};
  return std::ranges::find(kClasses, module.name()) != std::end(kClasses);
}

bool is_cast(const nn::Module& module) {
  return detail::linear_class_of(module) == detail::LinearClass::linear ||
      is_exported_convolution(module) ||
      module.as<nn::Conv1dImpl>() != nullptr ||
      module.as<nn::Conv2dImpl>() != nullptr ||
      module.as<nn::Conv3dImpl>() != nullptr ||
      module.as<nn::ConvTranspose1dImpl>() != nullptr ||
      module.as<nn::ConvTranspose2dImpl>() != nullptr ||
      module.as<nn::ConvTranspose3dImpl>() != nullptr;
}

std::vector<std::regex> patterns_of(const std::vector<std::string>& texts) {
  std::vector<std::regex> patterns;
  for (const std::string& text : texts) {
    try {
      patterns.emplace_back(text, std::regex::ECMAScript);
    } catch (const std::regex_error& error) {
      throw ConfigError(detail::format(
          "[big_model] skip_modules_pattern must contain regular expressions, "
          "but has \"{}\": {}",
          detail::printable(text),
          error.what()));
    }
  }
  return patterns;
}

void attach(
    nn::Module& module,
    const std::string& name,
    const std::shared_ptr<ModelHook>& hook,
    const std::vector<std::regex>& patterns,
    const std::vector<std::string>& classes) {
  detail::ModuleNode node;
  node.class_name = module.name();
  const bool is_skipped = detail::is_one_of(node, classes) ||
      std::ranges::any_of(patterns, [&](const auto& pattern) {
                            return std::regex_search(name, pattern);
                          });
  if (is_skipped) return;
  if (is_cast(module)) {
    add_hook_to_module(module, hook, /*append=*/true);
    return;
  }
  for (const auto& child : module.named_children()) {
    attach(
        *child.value(),
        detail::dotted_name(name, child.key()),
        hook,
        patterns,
        classes);
  }
}

}  // namespace

void attach_layerwise_casting_hooks(
    nn::Module& module,
    c10::ScalarType storage_dtype,
    c10::ScalarType compute_dtype,
    const LayerwiseCastingOptions& options) {
  for (const c10::ScalarType dtype : {storage_dtype, compute_dtype}) {
    if (at::isFloatingType(dtype)) continue;
    throw ConfigError(detail::format(
        "[big_model] dtypes must be floating-point, but one is {}",
        c10::toString(dtype)));
  }
  attach(
      module,
      "",
      std::make_shared<LayerwiseCastingHook>(
          storage_dtype, compute_dtype, options.non_blocking),
      patterns_of(options.skip_modules_pattern),
      options.skip_modules_classes);
}

}  // namespace accelerate
