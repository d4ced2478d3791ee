#include <accelerate/adapters.h>

#include <algorithm>
#include <utility>

#include <accelerate/error.h>

#include "adapters/adapter_tree.h"
#include "adapters/add_adapter.h"
#include "adapters/target_layers.h"
#include "adapters/unmerge.h"
#include "base/text/text.h"

namespace accelerate {

using namespace detail;

namespace detail {

namespace {

void require_new_name(const AdapterKeeper* keeper, const std::string& name) {
  if (name.empty() || name.find('.') != std::string::npos) {
    throw ConfigError(format(
        "[adapters] the name of an adapter must not be empty or have a dot, "
        "but is \"{}\"",
        printable(name)));
  }
  if (keeper == nullptr || !keeper->adapters.contains(name)) return;
  throw ConfigError(format(
      "[adapters] the name of a new adapter must be unused, but the model has "
      "an adapter \"{}\": delete_adapter() removes it",
      printable(name)));
}

void add_to_layer(
    const TargetLayer& target,
    const AdapterOptions& options,
    const std::string& name,
    const std::shared_ptr<AdapterKeeper>& keeper) {
  AdaptedLayer* layer = keeper->layer(target.module.name);
  if (layer != nullptr && layer->division) {
    throw ConfigError(format(
        "[adapters] adapters of \"{}\" must be added before prepare(), since "
        "ranks have slices of the layer (tensor parallelism)",
        printable(target.module.name)));
  }
  LayerAdapter adapter =
      make_adapter(target.facts, options, target.module.name);
  if (layer == nullptr) {
    layer = &keeper->add_layer(
        {.name = target.module.name,
         .known = {target.facts.kind, target.facts.weight.sizes().vec()},
         .groups = target.facts.groups},
        target.facts.weight);
  }
  register_adapter(
      *target.module.module, target.facts.kind, name, adapter, keeper);
  layer->adapters.emplace(name, std::move(adapter));
}

void remove(
    torch::nn::Module& model,
    AdapterKeeper& keeper,
    const std::string& name) {
  for (AdaptedLayer* const layer : keeper.layers()) {
    if (layer->adapters.erase(name) == 0) continue;
    torch::nn::Module& module = module_at(model, layer->name);
    unregister_adapter(module, name);
    if (layer->adapters.empty())
      keeper.forget(std::string(layer->name), own_parameter(module, "weight"));
  }
  for (CopiedParameter* const parameter : keeper.all_copied()) {
    if (parameter->copies.erase(name) == 0) continue;
    unregister_adapter(module_at(model, parameter->module_name), name);
    if (parameter->copies.empty()) {
      keeper.forget(
          std::string(parameter->name), parameter_at(model, parameter->name));
    }
  }
  keeper.adapters.erase(name);
  std::erase(keeper.active, name);
  if (keeper.active.empty() && !keeper.adapters.empty())
    keeper.active = {keeper.adapters.begin()->first};
}

}  // namespace

std::vector<std::string> add_adapter(
    torch::nn::Module& model,
    AdapterOptions options,
    const std::string& name,
    bool is_trainable) {
  std::shared_ptr<AdapterKeeper> keeper = keeper_in(model);
  require_new_name(keeper.get(), name);
  require_valid(options);
  const Targets targets = find_targets(model, options);
  if (keeper == nullptr) keeper = std::make_shared<AdapterKeeper>(model);
  std::vector<std::string> names;
  for (const TargetLayer& target : targets.layers) {
    names.push_back(target.module.name);
    add_to_layer(target, options, name, keeper);
    if (target.facts.kind == LayerKind::transposed_linear)
      options.fan_in_fan_out = true;
  }
  for (const NamedModule& module : targets.saved)
    register_copies(module, name, keeper);
  // Files name the layers that an expression such as "all-linear" selected.
  if (to_lower(options.target_modules.expression()) == "all-linear")
    options.target_modules = names;
  keeper->adapters.emplace(
      name, KnownAdapter{std::move(options), is_trainable});
  if (keeper->active.empty()) keeper->active = {name};
  update_requires_grad(model, *keeper);
  return names;
}

}  // namespace detail

std::vector<std::string> add_adapters(
    const AdaptedModule& model,
    const AdapterOptions& options,
    const std::string& name) {
  return add_adapter(*model, options, name, /*is_trainable=*/true);
}

std::vector<std::string> adapter_names(const AdaptedModule& model) {
  std::vector<std::string> names;
  if (const auto keeper = keeper_in(*model)) {
    for (const auto& [name, known] : keeper->adapters) names.push_back(name);
  }
  return names;
}

std::vector<std::string> active_adapters(const AdaptedModule& model) {
  const auto keeper = keeper_in(*model);
  return keeper ? keeper->active : std::vector<std::string>();
}

std::vector<std::string> merged_adapters(const AdaptedModule& model) {
  const auto keeper = keeper_in(*model);
  return keeper ? keeper->merged_names() : std::vector<std::string>();
}

AdapterOptions adapter_options(
    const AdaptedModule& model,
    const std::string& name) {
  return require_adapter(require_keeper(*model), name).options;
}

void set_adapter(const AdaptedModule& model, const std::string& name) {
  set_adapter(model, std::vector<std::string>{name});
}

void set_adapter(
    const AdaptedModule& model,
    const std::vector<std::string>& names) {
  AdapterKeeper& keeper = require_keeper(*model);
  if (names.empty()) {
    throw ConfigError(
        "[adapters] set_adapter() must get names of adapters, but got none; "
        "DisableAdapters computes without adapters");
  }
  for (const std::string& name : names) require_adapter(keeper, name);
  unmerge_all(*model, keeper);
  keeper.active = names;
  update_requires_grad(*model, keeper);
}

struct DisableAdapters::State {
  std::shared_ptr<AdapterKeeper> keeper;
};

DisableAdapters::DisableAdapters(const AdaptedModule& model)
    : state_(std::make_unique<State>()) {
  AdapterKeeper& keeper = require_keeper(*model);
  if (!keeper.merged_names().empty()) {
    throw ConfigError(
        "[adapters] adapters must not be merged if they are to be disabled, "
        "but are: call unmerge_adapters() first");
  }
  state_->keeper = keeper.shared_from_this();
  ++keeper.num_disabled;
}

DisableAdapters::~DisableAdapters() { --state_->keeper->num_disabled; }

void delete_adapter(const AdaptedModule& model, const std::string& name) {
  AdapterKeeper& keeper = require_keeper(*model);
  require_adapter(keeper, name);
  const auto merged = keeper.merged_names();
  if (std::ranges::find(merged, name) != merged.end()) {
    throw ConfigError(format(
        "[adapters] an adapter that is deleted must not be merged, but \"{}\" "
        "is: call unmerge_adapters() or merge_and_unload()",
        printable(name)));
  }
  // The model's modules hold the keeper.
  const auto held = keeper.shared_from_this();
  remove(*model, keeper, name);
  update_requires_grad(*model, keeper);
}

void unload_adapters(const AdaptedModule& model) {
  const auto keeper = require_keeper(*model).shared_from_this();
  unmerge_all(*model, *keeper);
  while (!keeper->adapters.empty())
    remove(*model, *keeper, std::string(keeper->adapters.begin()->first));
}

}  // namespace accelerate
