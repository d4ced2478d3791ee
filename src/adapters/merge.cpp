// Adapters added to the weights of their layers, and taken out again.
#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/adapters.h>
#include <accelerate/error.h>

#include "adapters/adapter_tree.h"
#include "adapters/unmerge.h"
#include "base/text/text.h"
#include "gate/gate_entry.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace detail {

namespace {

// A layer whose weight is to change.
struct Change {
  AdaptedLayer* layer = nullptr;
  at::Tensor weight;
  std::vector<MergedAdapter> merged = {};
};

at::Tensor scaled_product(const LayerAdapter& adapter, const Change& change) {
  return adapter_product(
             adapter, change.layer->known.kind, change.weight.sizes()) *
      adapter.scaling;
}

// Returns the weight with the adapters, and the factor that it was multiplied
// by.
at::Tensor merged_weight(
    Change& change,
    const std::vector<std::string>& names) {
  const LayerKind kind = change.layer->known.kind;
  const at::Tensor before = change.weight.detach();
  at::Tensor weight = before;
  for (const std::string& name : names) {
    const auto found = change.layer->adapters.find(name);
    if (found == change.layer->adapters.end()) continue;
    const LayerAdapter& adapter = found->second;
    const at::Tensor product = scaled_product(adapter, change);
    MergedAdapter merged{name};
    weight = weight + product;
    if (adapter.magnitude.defined()) {
      merged.factor = as_weight_factor(
          adapter.magnitude.detach() / weight_norms(before + product, kind),
          kind,
          change.weight.sizes());
      weight = weight * merged.factor;
    }
    change.merged.push_back(std::move(merged));
  }
  return weight.to(before.scalar_type());
}

constexpr const char* kDivided =
    "must be complete, but ranks have slices of it (tensor parallelism)";

std::string reason_against(
    const AdapterKeeper& adapters,
    const AdaptedLayer& layer,
    const at::Tensor& weight) {
  if (adapters.is_divided(layer))
    return std::string(kDivided) + ": merge inside full_parameters()";
  const GateEntry* const entry = entry_of(weight);
  const GateKeeper* const keeper = keeper_of(weight);
  if (keeper != nullptr && const_cast<GateKeeper*>(keeper)->as_coded_keeper())
    return "must not be quantised, but is: save the adapters, and merge them "
           "into the model before it was quantised";
  if (is_offloaded(weight)) return "must be in memory, but is offloaded";
  if (weight.is_meta()) return "must have values, but is on the meta device";
  if (keeper != nullptr && !entry->memory.defined())
    return "must be complete, but is sharded: merge inside full_parameters()";
  if (layer.has_other_use) {
    return "must not be tied, but the program also computes "
           "something else with it";
  }
  if (layer.groups > 1)
    return format(
        "must not be a convolution of several groups, but has {}",
        layer.groups);
  return "";
}

// The name of another layer that computes with the weight.
std::string other_user(
    const std::vector<NamedModule>& modules,
    const AdaptedLayer& layer,
    const at::Tensor& weight) {
  for (const NamedModule& each : modules) {
    if (each.name == layer.name) continue;
    for (const auto& item : each.module->named_parameters(/*recurse=*/false))
      if (item.value().is_same(weight)) return each.name;
  }
  return "";
}

std::vector<Change> find_changes(
    torch::nn::Module& model,
    AdapterKeeper& keeper,
    const std::vector<std::string>& names) {
  const std::vector<NamedModule> modules = modules_without_adapters(model);
  std::vector<Change> changes;
  std::vector<std::string> complaints;
  for (AdaptedLayer* const layer : keeper.layers()) {
    const bool has_any = std::ranges::any_of(names, [&](const auto& name) {
      return layer->adapters.contains(name);
    });
    if (!has_any) continue;
    Change change{
        layer, own_parameter(module_at(model, layer->name), "weight")};
    const std::string other = other_user(modules, *layer, change.weight);
    const std::string reason = other.empty()
        ? reason_against(keeper, *layer, change.weight)
        : format(
              "must not be tied, but is also that of \"{}\"", printable(other));
    if (!reason.empty()) {
      complaints.push_back(
          format("the weight of \"{}\" {}", printable(layer->name), reason));
    }
    changes.push_back(std::move(change));
  }
  if (complaints.empty()) return changes;
  throw ConfigError(
      "[adapters] adapters cannot be merged: " + join(complaints, "; "));
}

std::vector<std::string> names_to_merge(
    AdapterKeeper& keeper,
    const MergeAdaptersOptions& options) {
  const std::vector<std::string> names =
      options.names.empty() ? keeper.active : options.names;
  const std::vector<std::string> merged = keeper.merged_names();
  for (const std::string& name : names) {
    require_adapter(keeper, name);
    if (merged.empty()) continue;
    throw ConfigError(format(
        "[adapters] adapters must be merged in one call, but {} already are: "
        "call unmerge_adapters() first",
        printable(join(merged, ", "))));
  }
  return names;
}

void require_finite(
    const std::vector<Change>& changes,
    const std::vector<std::string>& names) {
  for (const Change& change : changes) {
    Change tried{change.layer, change.weight};
    if (at::isfinite(merged_weight(tried, names)).all().item<bool>()) continue;
    throw Error(format(
        "[adapters] merged weights must be finite, but that of \"{}\" is not: "
        "an adapter has extreme values",
        printable(change.layer->name)));
  }
}

}  // namespace

void unmerge_all(torch::nn::Module& model, AdapterKeeper& keeper) {
  const at::NoGradGuard no_grad;
  for (AdaptedLayer* const layer : keeper.layers()) {
    if (layer->merged.empty()) continue;
    if (keeper.is_divided(*layer)) {
      throw ConfigError(format(
          "[adapters] the weight of \"{}\" {}: unmerge inside "
          "full_parameters()",
          printable(layer->name),
          kDivided));
    }
    const Change change{
        layer, own_parameter(module_at(model, layer->name), "weight")};
    at::Tensor weight = change.weight.detach();
    for (; !layer->merged.empty(); layer->merged.pop_back()) {
      const MergedAdapter& merged = layer->merged.back();
      if (merged.factor.defined()) weight = weight / merged.factor;
      weight = weight - scaled_product(layer->adapters.at(merged.name), change);
    }
    change.weight.copy_(weight);
  }
}

}  // namespace detail

using namespace detail;

void merge_adapters(
    const AdaptedModule& model,
    const MergeAdaptersOptions& options) {
  AdapterKeeper& keeper = require_keeper(*model);
  const std::vector<std::string> names = names_to_merge(keeper, options);
  std::vector<Change> changes = find_changes(*model, keeper, names);
  const at::NoGradGuard no_grad;
  if (options.safe_merge) require_finite(changes, names);
  for (Change& change : changes) {
    const at::Tensor weight = merged_weight(change, names);
    change.weight.copy_(weight);
    change.layer->merged = std::move(change.merged);
  }
}

void unmerge_adapters(const AdaptedModule& model) {
  unmerge_all(*model, require_keeper(*model));
}

void merge_and_unload(
    const AdaptedModule& model,
    const MergeAdaptersOptions& options) {
  const auto keeper = require_keeper(*model).shared_from_this();
  merge_adapters(model, options);
  const std::vector<std::string> names =
      options.names.empty() ? keeper->active : options.names;
  const at::NoGradGuard no_grad;
  for (const CopiedParameter* const parameter : keeper->all_copied()) {
    for (const std::string& name : names) {
      const auto found = parameter->copies.find(name);
      if (found == parameter->copies.end()) continue;
      parameter_at(*model, parameter->name).copy_(found->second);
    }
  }
  // Merged adapters stay in the weights.
  for (AdaptedLayer* const layer : keeper->layers()) layer->merged.clear();
  unload_adapters(model);
}

}  // namespace accelerate
