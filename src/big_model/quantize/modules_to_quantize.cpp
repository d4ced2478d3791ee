// Which layers are quantised, by Accelerate's rules.
#include <algorithm>
#include <set>
#include <utility>

#include <accelerate/big_model.h>
#include <accelerate/quantized_model.h>

#include "big_model/plan/device_map_inference.h"
#include "big_model/plan/memory_limits.h"
#include "big_model/quantize/skipped_modules.h"
#include "gate/linear_weight.h"
#include "modules/module_tree.h"
#include "params/model_modules.h"

namespace accelerate {

namespace {

// A module named "up" also excludes modules in "layers.0.up" and in "mlp_up".
bool is_kept(
    const std::string& name,
    const std::string& full_name,
    const std::vector<std::string>& keys) {
  return std::ranges::any_of(keys, [&](const std::string& key) {
    return key == name || key == full_name ||
        full_name.find(key + ".") != std::string::npos;
  });
}

void find_linears(
    const torch::nn::Module& module,
    const std::string& prefix,
    const std::vector<std::string>& skip_modules,
    std::vector<std::string>& found) {
  for (const auto& child : module.named_children()) {
    const std::string name = detail::dotted_name(prefix, child.key());
    const bool is_linear = detail::linear_weight_of(*child.value()).defined();
    if (is_linear && !is_kept(child.key(), name, skip_modules))
      found.push_back(name);
    find_linears(*child.value(), name, skip_modules, found);
  }
}

std::string without_suffixes(std::string name) {
  for (const std::string suffix : {".weight", ".bias"}) {
    for (auto at = name.find(suffix); at != std::string::npos;
         at = name.find(suffix)) {
      name.erase(at, suffix.size());
    }
  }
  return name;
}

}  // namespace

std::vector<std::string> get_keys_to_not_convert(
    const torch::nn::Module& model,
    const std::string& base_model_prefix) {
  std::vector<std::string> tied;
  for (const auto& group : detail::tied_parameters(detail::module_tree(model)))
    tied.insert(tied.end(), group.begin(), group.end());
  const auto children = model.named_children();
  const bool is_base_model =
      !base_model_prefix.empty() && children.find(base_model_prefix) == nullptr;
  if (children.is_empty() || (tied.empty() && is_base_model)) return {};
  std::vector<std::string> names = tied;
  names.push_back(children.back().key());
  std::ranges::transform(names, names.begin(), without_suffixes);
  return names;
}

std::vector<std::string> modules_to_quantize(
    const torch::nn::Module& model,
    const std::vector<std::string>& skip_modules) {
  std::vector<std::string> found;
  find_linears(model, "", skip_modules, found);
  return found;
}

namespace {

// The options with the sizes of the quantised model.
InferAutoDeviceMapOptions with_quantized_sizes(
    const torch::nn::Module& model,
    const QuantizationOptions& config,
    InferAutoDeviceMapOptions options) {
  static_cast<void>(config.check());
  const auto names =
      modules_to_quantize(model, detail::skipped_modules(model, config));
  const std::set<std::string> quantized(names.begin(), names.end());
  const auto dtype_name = [](c10::ScalarType dtype) {
    return dtype == c10::ScalarType::Float ? "float32"
        : dtype == c10::ScalarType::Half   ? "float16"
                                           : "bfloat16";
  };
  const std::string dtype = dtype_name(config.resolved_torch_dtype());
  options.dtype = config.target_dtype();
  options.special_dtypes.clear();
  for (const auto& [name, tensor] : get_state_dict(model)) {
    const auto dot = name.rfind('.');
    const bool is_weight = name.substr(dot + 1) == "weight";
    if (!tensor.is_floating_point() ||
        (is_weight && quantized.contains(name.substr(0, dot)))) {
      continue;
    }
    const bool is_fp32 = config.keep_in_fp32_modules &&
        std::ranges::any_of(*config.keep_in_fp32_modules,
                            [&, full_name = name](const std::string& module) {
                              return full_name.find(module) !=
                                  std::string::npos;
                            });
    options.special_dtypes.emplace_back(name, is_fp32 ? "float32" : dtype);
  }
  return options;
}

}  // namespace

DeviceMap infer_quantized_device_map(
    const torch::nn::Module& model,
    const QuantizationOptions& config,
    InferAutoDeviceMapOptions options) {
  options = with_quantized_sizes(model, config, std::move(options));
  options.max_memory = detail::normalised_memory(options.max_memory);
  return detail::infer_device_map(detail::module_tree(model), options);
}

DeviceMap infer_quantized_device_map(
    const torch::nn::Module& model,
    const QuantizationOptions& config,
    const std::string& strategy,
    InferAutoDeviceMapOptions options) {
  return infer_auto_device_map(
      model, strategy, with_quantized_sizes(model, config, std::move(options)));
}

namespace detail {

std::vector<std::string> skipped_modules(
    const torch::nn::Module& model,
    const QuantizationOptions& config) {
  std::vector<std::string> names = config.skip_modules
      ? *config.skip_modules
      : get_keys_to_not_convert(model);
  if (config.keep_in_fp32_modules) {
    names.insert(
        names.end(),
        config.keep_in_fp32_modules->begin(),
        config.keep_in_fp32_modules->end());
  }
  return names;
}

}  // namespace detail

}  // namespace accelerate
