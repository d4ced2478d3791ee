// Adapters in PEFT's files.
#include <map>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accelerate/adapters.h>
#include <accelerate/error.h>
#include <accelerate/safetensors.h>
#include <accelerate/weights.h>

#include "adapters/adapter_config.h"
#include "adapters/adapter_tree.h"
#include "adapters/add_adapter.h"
#include "adapters/unmerge.h"
#include "base/files/files.h"
#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "gate/gate_entry.h"
#include "gate/watched_tensor.h"

namespace accelerate {

using namespace detail;

namespace {

constexpr std::string_view kPrefix = "base_model.model.";

/// A tensor of an adapter.
struct SavedTensor {
  /// The name in PEFT's files.
  std::string key;
  /// The name in the model.
  std::string name;
  at::Tensor tensor;
};

std::string key_of(const std::string& module, const std::string& rest) {
  return std::string(kPrefix) + joined(module, rest);
}

void add_layer_tensors(
    const AdaptedLayer& layer,
    const LayerAdapter& adapter,
    const std::string& name,
    std::vector<SavedTensor>& tensors) {
  const bool is_embedding = layer.known.kind == LayerKind::embedding;
  const auto add = [&](const std::string& dict, const at::Tensor& tensor) {
    const bool is_magnitude = dict == "lora_magnitude_vector";
    tensors.push_back(
        {key_of(
             layer.name,
             dict + (is_embedding || is_magnitude ? "" : ".weight")),
         joined(
             layer.name,
             dict + "." + name +
                 (is_embedding && !is_magnitude ? "" : ".weight")),
         tensor});
  };
  add(is_embedding ? "lora_embedding_A" : "lora_A", adapter.a);
  add(is_embedding ? "lora_embedding_B" : "lora_B", adapter.b);
  if (adapter.magnitude.defined())
    add("lora_magnitude_vector", adapter.magnitude);
}

// PEFT's wrapper has the layer's own tensors in "base_layer".
void add_biases(
    torch::nn::Module& model,
    const AdapterKeeper& keeper,
    AdapterBias bias,
    std::vector<SavedTensor>& tensors) {
  if (bias == AdapterBias::none) return;
  for (const NamedModule& each : modules_without_adapters(model)) {
    const at::Tensor own = own_parameter(*each.module, "bias");
    const bool is_adapted = keeper.layer(each.name) != nullptr;
    if (!own.defined() || (bias == AdapterBias::lora_only && !is_adapted))
      continue;
    tensors.push_back(
        {key_of(each.name, is_adapted ? "base_layer.bias" : "bias"),
         joined(each.name, "bias"),
         own});
  }
}

std::vector<SavedTensor> tensors_of(
    torch::nn::Module& model,
    AdapterKeeper& keeper,
    const std::string& name) {
  const AdapterOptions& options = require_adapter(keeper, name).options;
  std::vector<SavedTensor> tensors;
  for (const AdaptedLayer* const layer : keeper.layers()) {
    const auto found = layer->adapters.find(name);
    if (found != layer->adapters.end())
      add_layer_tensors(*layer, found->second, name, tensors);
  }
  for (const CopiedParameter* const parameter : keeper.all_copied()) {
    const auto found = parameter->copies.find(name);
    if (found == parameter->copies.end()) continue;
    const std::string& module = parameter->module_name;
    const std::string rest = parameter->name.substr(module.size() + 1);
    tensors.push_back(
        {key_of(module, rest),
         joined(module, "modules_to_save." + name + "." + rest),
         found->second});
  }
  add_biases(model, keeper, options.bias, tensors);
  return tensors;
}

// Tensors of the model by its names, for those of `weights`.
void take_from(const WeightList& weights, std::vector<SavedTensor>& tensors) {
  const std::map<std::string, at::Tensor> by_name(
      weights.begin(), weights.end());
  for (SavedTensor& each : tensors) {
    const auto found = by_name.find(each.name);
    if (found == by_name.end()) {
      throw ConfigError(format(
          "[adapters] the weights to save must have all tensors of the "
          "adapter, but \"{}\" is missing",
          printable(each.name)));
    }
    each.tensor = found->second;
  }
}

// Slices look like full tensors.
void require_complete(const AdapterKeeper& keeper, const std::string& name) {
  for (const AdaptedLayer* const layer : keeper.layers()) {
    if (!keeper.is_divided(*layer) || !layer->division->pass ||
        !layer->adapters.contains(name))
      continue;
    throw ConfigError(format(
        "[adapters] the adapter of \"{}\" must be complete, but ranks have "
        "slices of it (tensor parallelism): pass Model::state_dict() to "
        "save_adapters(), or call it inside full_parameters()",
        printable(layer->name)));
  }
}

void write_tensors(
    const std::filesystem::path& path,
    const std::vector<SavedTensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<safetensors::Declaration> declared;
  std::map<std::string, at::Tensor> by_key;
  for (const SavedTensor& each : tensors) {
    const GateEntry* const entry = entry_of(each.tensor);
    if (entry != nullptr && !entry->memory.defined()) {
      throw ConfigError(format(
          "[adapters] \"{}\" must be complete, but is sharded or offloaded: "
          "pass Model::state_dict() to save_adapters(), or call it inside "
          "full_parameters()",
          printable(each.name)));
    }
    const at::Tensor values = each.tensor.detach().to(at::kCPU).contiguous();
    const auto dtype = file_dtype(values.scalar_type());
    if (!dtype) {
      throw ConfigError(format(
          "[adapters] the dtype of \"{}\" must be one that safetensors has, "
          "but is {}",
          printable(each.name),
          c10::toString(values.scalar_type())));
    }
    declared.push_back({each.key, *dtype, file_shape(values)});
    by_key.emplace(each.key, values);
  }
  safetensors::Writer writer(path, declared, {{"format", "pt"}});
  for (const std::string& key : writer.order())
    writer.write(bytes_of(by_key.at(key)));
  writer.finish();
}

std::map<std::string, at::Tensor> read_tensors(
    const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kAdapterWeightsName;
  if (std::filesystem::exists(path)) return load_state_dict(path);
  const std::filesystem::path pickled = directory / "adapter_model.bin";
  return load_state_dict(std::filesystem::exists(pickled) ? pickled : path);
}

// The tensor of the model that PEFT saved with the adapter although it is not
// part of it: an embedding of a layer that has adapters. Undefined for others.
at::Tensor base_tensor(torch::nn::Module& model, const std::string& key) {
  constexpr std::string_view kBase = ".base_layer.";
  const std::size_t at = key.find(kBase);
  if (!key.starts_with(kPrefix) || at == std::string::npos) return {};
  const std::string module = key.substr(kPrefix.size(), at - kPrefix.size());
  for (const NamedModule& each : modules_without_adapters(model)) {
    if (each.name == module)
      return own_parameter(*each.module, key.substr(at + kBase.size()).c_str());
  }
  return {};
}

/// What a file's tensors become.
using Assignments = std::vector<std::pair<at::Tensor, at::Tensor>>;

Assignments match(
    torch::nn::Module& model,
    const std::vector<SavedTensor>& tensors,
    std::map<std::string, at::Tensor> found,
    const std::filesystem::path& directory) {
  Assignments assignments;
  std::vector<std::string> complaints;
  const auto assign_to = [&](const at::Tensor& own,
                             const std::string& key,
                             const at::Tensor& values) {
    if (own.sizes() == values.sizes()) {
      assignments.emplace_back(own, values);
      return;
    }
    complaints.push_back(format(
        "\"{}\" must have the shape [{}], but has [{}]",
        printable(key),
        c10::Join(", ", own.sizes()),
        c10::Join(", ", values.sizes())));
  };
  for (const SavedTensor& each : tensors) {
    auto item = found.extract(each.key);
    if (item.empty()) {
      complaints.push_back(format("\"{}\" is missing", printable(each.key)));
    } else {
      assign_to(each.tensor, each.key, item.mapped());
    }
  }
  for (const auto& [key, values] : found) {
    const at::Tensor own = base_tensor(model, key);
    if (!own.defined()) {
      complaints.push_back(
          format("\"{}\" fits nothing in the model", printable(key)));
    } else if (!is_offloaded_or_coded(own)) {
      assign_to(own, key, values);
    }
  }
  if (complaints.empty()) return assignments;
  throw CheckpointError(format(
      "[adapters] {} does not fit the model: {}",
      directory.string(),
      join(complaints, "; ")));
}

}  // namespace

void save_adapters(
    const AdaptedModule& model,
    const std::filesystem::path& directory,
    const std::string& name,
    const WeightList& weights) {
  AdapterKeeper& keeper = require_keeper(*model);
  std::vector<SavedTensor> tensors = tensors_of(*model, keeper, name);
  if (weights.empty()) {
    require_complete(keeper, name);
  } else {
    take_from(weights, tensors);
  }
  std::filesystem::create_directories(directory);
  write_tensors(directory / kAdapterWeightsName, tensors);
  replace_file(
      directory / kAdapterConfigName,
      config_text(keeper.adapters.at(name).options));
}

AdapterOptions load_adapters(
    const AdaptedModule& model,
    const std::filesystem::path& directory,
    const std::string& name,
    const LoadAdaptersOptions& options) {
  const AdapterOptions config = read_adapter_options(directory);
  std::map<std::string, at::Tensor> found = read_tensors(directory);
  const auto known = keeper_in(*model);
  const bool is_new = known == nullptr || !known->adapters.contains(name);
  if (is_new) add_adapter(*model, config, name, options.is_trainable);
  AdapterKeeper& keeper = require_keeper(*model);
  try {
    unmerge_all(*model, keeper);
    const Assignments assignments = match(
        *model, tensors_of(*model, keeper, name), std::move(found), directory);
    const at::NoGradGuard no_grad;
    for (const auto& [own, values] : assignments) own.copy_(values);
  } catch (...) {
    if (is_new) delete_adapter(model, name);
    throw;
  }
  return config;
}

}  // namespace accelerate
