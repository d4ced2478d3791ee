#include <algorithm>
#include <fstream>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <accelerate/empty_weights.h>
#include <accelerate/hooks.h>
#include <accelerate/layerwise_casting.h>
#include <accelerate/model_device_map.h>
#include <accelerate/module_tensors.h>
#include <accelerate/nested.h>
#include <accelerate/offload.h>

#include "big_model/offload/weight_dtype.h"
#include "big_model/plan/check_map.h"
#include "oracle/big_model/dispatched_case.h"
#include "oracle/big_model/recorded_files.h"
#include "oracle/big_model/recorded_model.h"
#include "oracle/departures.h"
#include "params/model_modules.h"
#include "support/temporary_directory.h"

namespace accelerate::oracle {

namespace topic_big_model_dispatch {

namespace fs = std::filesystem;
namespace nn = torch::nn;

// Returns the function's result, or that it failed.
template <class Function>
Json outcome_of(Function&& function) {
  try {
    return function();
  } catch (const NotBuilt&) {
    throw;
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

Json dtype_json(const at::Tensor& tensor) {
  return detail::dtype_name(tensor.scalar_type());
}

Json offload_one(const Json& input) {
  const testing::TemporaryDirectory folder;
  const std::string name = input.at("name");
  const OffloadedWeight entry =
      offload_weight(described_tensor(input.at("tensor")), name, folder.path());
  save_offload_index(OffloadIndex({{name, entry}}), folder.path());
  return {
      {"entry", {{"dtype", entry.dtype}, {"shape", entry.shape}}},
      {"folder", folder_json(folder.path())},
      {"loaded",
       tensor_json(
           load_offloaded_weight(folder.path() / (name + ".dat"), entry),
           true)}};
}

Json values_json(
    const WeightMapping& mapping,
    const std::vector<std::string>& names) {
  Json values = Json::array();
  for (const std::string& name : names) {
    values.push_back({name, outcome_of([&] {
                        return tensor_json(mapping.at(name), true);
                      })});
  }
  return values;
}

Json weights_loader(const Json& input) {
  const testing::TemporaryDirectory directory;
  OffloadedWeightsSources sources;
  sources.state_dict = weights_of(input.at("memory"));
  if (!input.at("folder").is_null()) {
    sources.save_folder = directory.path() / "folder";
    offload_state_dict(sources.save_folder, weights_of(input.at("folder")));
  }
  if (!input.at("safetensors").is_null()) {
    const fs::path file = directory.path() / "weights.safetensors";
    WeightList stored;
    for (const Json& each : input.at("safetensors")) {
      const std::string stored_name = each[each[2].is_null() ? 0 : 2];
      stored.emplace_back(stored_name, described_tensor(each[1]));
      OffloadedWeight entry{
          .safetensors_file = file, .weight_name = stored_name};
      if (!each[3].is_null()) entry.dtype = each[3];
      sources.index.set(each[0], entry);
    }
    write_safetensors(file, stored, {{"format", "pt"}});
  }
  return outcome_of([&]() -> Json {
    const OffloadedWeightsLoader loader(std::move(sources));
    const PrefixedDataset prefixed(loader, input.at("prefix"));
    return {
        {"keys", loader.keys()},
        {"length", loader.size()},
        {"values",
         values_json(loader, input.at("ask").get<std::vector<std::string>>())},
        {"prefixed",
         {{"keys", prefixed.keys()},
          {"length", prefixed.size()},
          {"values", values_json(prefixed, {"weight", "bias", "x"})}}}};
  });
}

Json set_one(RecordedModel& model, const Json& step) {
  const std::string name = step.at("name");
  SetModuleTensorOptions options;
  if (!step.at("value").is_null())
    options.value = described_tensor(step.at("value"));
  if (!step.at("dtype").is_null()) options.dtype = any_dtype(step.at("dtype"));
  return outcome_of([&]() -> Json {
    const c10::Device device(step.at("device").get<std::string>());
    set_module_tensor_to_device(model, name, device, options);
    const at::Tensor tensor = model.find(name);
    return {
        {"device", tensor.device().str()},
        {"dtype", dtype_json(tensor)},
        {"parameter", model.named_parameters().contains(name)},
        {"requires_grad", tensor.requires_grad()},
        {"value", tensor.is_meta() ? Json() : tensor_json(tensor)}};
  });
}

Json set_tensor(const Json& input) {
  const auto model = recorded_model(input);
  Json steps = Json::array();
  for (const Json& step : input.at("steps"))
    steps.push_back(set_one(*model, step));
  return {
      {"steps", std::move(steps)}, {"tied_now", find_tied_parameters(*model)}};
}

std::string python_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "'" : ", '") + name + "'";
  return "[" + text + "]";
}

Json check_map(const Json& input) {
  const auto model = recorded_model(input);
  return outcome_of([&]() -> Json {
    const DeviceMap map = device_map_of(input.at("device_map"));
    check_device_map(*model, map);
    const auto unknown =
        detail::find_complaints(detail::module_tree(*model), map).unknown;
    Json warnings = Json::array();
    if (!unknown.empty()) {
      warnings.push_back(
          "The following device_map keys do not match any submodules in the "
          "model: " +
          python_list(unknown));
    }
    return {{"warnings", std::move(warnings)}};
  });
}

Json module_tensors(const Json& input) {
  const auto model = recorded_model(input);
  const RecordedModel& module = model->module(input.at("of"));
  const bool recurse = input.at("recurse");
  Json names = Json::array();
  for (const auto& [name, tensor] : named_module_tensors(
           module,
           {.include_buffers = input.at("include_buffers"),
            .recurse = recurse,
            .remove_non_persistent = input.at("remove_non_persistent")})) {
    names.push_back(name);
  }
  return {
      {"names", std::move(names)},
      {"non_persistent",
       get_non_persistent_buffers(module, {.recurse = recurse})},
      {"non_persistent_full",
       get_non_persistent_buffers(module, {.recurse = recurse, .fqns = true})}};
}

Json away_json(const torch::nn::Module& model) {
  Json away = Json::array();
  for (const auto& tensors : {model.named_parameters(), model.named_buffers()})
    for (const auto& item : tensors)
      if (item.value().is_meta()) away.push_back(item.key());
  return away;
}

Json description_of(const Json& module, const std::string& name) {
  const std::size_t dot = name.find('.');
  for (const Json& entry :
       module.at(dot == name.npos ? "parameters" : "children")) {
    if (entry[0] != name.substr(0, dot)) continue;
    return dot == name.npos ? entry[1]
                            : description_of(entry[1], name.substr(dot + 1));
  }
  throw std::out_of_range(name);
}

Json ties(const Json& input) {
  const auto model = recorded_model(input);
  const auto found = find_tied_parameters(*model);
  std::map<std::string, std::int64_t> places;
  for (const auto& item : model->named_parameters())
    places.emplace(item.key(), static_cast<std::int64_t>(places.size()));
  for (const Json& broken : input.at("broken")) {
    const std::string name = broken[0];
    const at::Tensor before = model->find(name);
    at::Tensor anew =
        at::empty_like(before, before.options().device(at::kMeta));
    if (broken[1] != "meta") {
      Json description = description_of(input.at("module"), name);
      description["fill"] = 70 + places[name];
      anew = described_tensor(description);
    }
    model->replace(name, anew.requires_grad_(before.requires_grad()));
  }
  const auto after_breaking = find_tied_parameters(*model);
  retie_parameters(
      *model, input.at("tied").get<std::vector<std::vector<std::string>>>());
  Json values = Json::array();
  for (const auto& group : input.at("tied"))
    for (const std::string name : group)
      values.push_back({name, digest_of(model->find(name))});
  const std::string warning = check_tied_parameters_on_same_device(
      found, device_map_of(input.at("device_map")));
  return {
      {"found", found},
      {"after_breaking", after_breaking},
      {"after_retying", find_tied_parameters(*model)},
      {"away", away_json(*model)},
      {"values", std::move(values)},
      {"warnings", warning.empty() ? Json::array() : Json::array({warning})}};
}

Json extract_submodules(const Json& input) {
  WeightList list;
  for (const std::string name : input.at("names"))
    list.emplace_back(name, at::zeros({1}));
  Json names = Json::array();
  for (const auto& [name, tensor] : extract_submodules_state_dict(
           list, input.at("submodules").get<std::vector<std::string>>())) {
    names.push_back(name);
  }
  return {{"names", std::move(names)}};
}

Json clean_map(const Json& input) {
  Json pairs = Json::array();
  const DeviceMap cleaned = clean_device_map(
      device_map_of(input.at("device_map")),
      input.at("below").get<std::string>());
  for (const Placement& each : cleaned.placements()) {
    const auto index = each.device.index();
    pairs.push_back(
        {each.name, index ? Json(*index) : Json(each.device.name())});
  }
  std::sort(pairs.begin(), pairs.end());
  return {{"device_map", std::move(pairs)}};
}

// A nested value, some of whose tensors may stay on their device.
struct Branch {
  std::string path;
  std::string key;
  at::Tensor tensor = {};
  std::vector<Branch> below = {};
};

Branch
read_branch(const Json& node, const std::string& path, const std::string& key) {
  Branch branch{path, key};
  const auto entry = node.items().begin();
  if (entry.key() == "tensor") branch.tensor = read_tensor(entry.value());
  if (entry.key() == "dict") {
    for (const Json& item : entry.value()) {
      const std::string name =
          item[0].is_string() ? item[0].get<std::string>() : item[0].dump();
      branch.below.push_back(read_branch(item[1], path + "/" + name, name));
    }
  }
  if (entry.key() == "list" || entry.key() == "tuple") {
    std::size_t i = 0;
    for (const Json& item : entry.value()) {
      const std::string name = std::to_string(i++);
      branch.below.push_back(read_branch(item, path + "/" + name, ""));
    }
  }
  return branch;
}

template <class Visitor>
void visit_tensors(Branch& branch, Visitor&& visitor) {
  if (!branch.key.empty() && !detail::enters(visitor, branch.key)) return;
  if (branch.tensor.defined()) visitor(branch.tensor);
  for (Branch& each : branch.below) visit_tensors(each, visitor);
}

void add_moved(const Branch& branch, Json& moved) {
  if (branch.tensor.defined() && branch.tensor.is_meta())
    moved.push_back(branch.path);
  for (const Branch& each : branch.below) add_moved(each, moved);
}

Json send(const Json& input) {
  SendToDeviceOptions options;
  const Json& skipped = input.at("skip_keys");
  if (skipped.is_string()) options.skip_keys = {skipped.get<std::string>()};
  if (skipped.is_array()) skipped.get_to(options.skip_keys);
  Branch branch = read_branch(input.at("data"), "", "");
  visit_tensors(branch, DeviceSender{at::kMeta, options});
  Json moved = Json::array();
  add_moved(branch, moved);
  return {{"moved", std::move(moved)}};
}

Json load_file(const Json& input) {
  const testing::TemporaryDirectory directory;
  const fs::path file = directory.path() / "model.safetensors";
  std::map<std::string, std::string> metadata;
  if (!input.at("metadata").is_null()) input.at("metadata").get_to(metadata);
  write_safetensors(file, weights_of(input.at("tensors")), metadata);
  Json tensors = Json::array();
  for (const auto& [name, tensor] : load_state_dict(file))
    tensors.push_back({name, tensor_json(tensor, true)});
  return {{"tensors", std::move(tensors)}, {"warnings", Json::array()}};
}

Json dtypes_json(const nn::Module& model) {
  Json dtypes = Json::array();
  for (const auto& item : model.named_parameters()) {
    dtypes.push_back({item.key(), dtype_json(item.value())});
  }
  return dtypes;
}

// A Sequential inside another one; its forward must not be a template.
struct InnerSequential : nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  at::Tensor forward(const at::Tensor& x) { return SequentialImpl::forward(x); }
};

nn::AnyModule layer_of(const std::string& kind, std::int64_t width) {
  if (kind == "Linear") return nn::AnyModule(nn::Linear(width, width));
  if (kind == "ReLU") return nn::AnyModule(nn::ReLU());
  if (kind == "LayerNorm")
    return nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({width})));
  return nn::AnyModule(std::make_shared<InnerSequential>(
      nn::Linear(width, width),
      nn::ReLU(),
      nn::Linear(nn::LinearOptions(width, width).bias(false))));
}

Json cast_layers(const Json& input) {
  nn::Sequential model;
  for (const Json& layer : input.at("layers")) {
    model->push_back(
        layer.at("name").get<std::string>(),
        layer_of(layer.at("class"), input.at("width")));
  }
  model->eval();
  const at::NoGradGuard no_grad;
  std::int64_t fill = 1;
  for (at::Tensor& parameter : model->parameters()) {
    parameter.copy_(described_tensor(
        {{"shape", parameter.sizes().vec()},
         {"dtype", "float32"},
         {"fill", fill++}}));
  }
  LayerwiseCastingOptions options;
  if (!input.at("skip_patterns").is_null())
    input.at("skip_patterns").get_to(options.skip_modules_pattern);
  if (!input.at("skip_classes").is_null())
    input.at("skip_classes").get_to(options.skip_modules_classes);
  const c10::ScalarType compute = any_dtype(input.at("compute"));
  attach_layerwise_casting_hooks(
      *model, any_dtype(input.at("storage")), compute, options);
  Json found{{"dtypes", dtypes_json(*model)}};
  found["forward"] = outcome_of([&]() -> Json {
    const at::Tensor x = described_tensor(input.at("x")).to(compute);
    return {{"output", tensor_json(model->forward(x))}};
  });
  found["dtypes_after"] = dtypes_json(*model);
  return found;
}

Json make_empty(const Json& input) {
  const auto model = init_empty_weights(
      [&] {
        auto made = std::make_shared<RecordedModel>(input.at("module"));
        made->tie(input.at("tied"));
        return made;
      },
      input.at("include_buffers").get<bool>());
  return {{"away", away_json(*model)}};
}

// Rules -------------------------------------------------------------------

bool is_kind(const Json& input, const char* kind) {
  return input.at("kind") == kind;
}

bool shared_tensors_stay_tied(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!is_kind(input, "set_tensor") || input.at("tied").empty() ||
      !expected.contains("tied_now")) {
    return false;
  }
  expected["tied_now"] = found.at("tied_now");
  return true;
}

bool tensors_are_entries(const Json& input, const Json& found, Json& expected) {
  if (!is_kind(input, "check_device_map") || !found.contains("warnings") ||
      !expected.contains("warnings")) {
    return false;
  }
  const auto model = recorded_model(input);
  for (const Json& pair : input.at("device_map")) {
    const std::string name = pair[0];
    if (expected.dump().find("'" + name + "'") == std::string::npos) continue;
    if (!model->named_parameters().contains(name) &&
        !model->named_buffers().contains(name)) {
      return false;
    }
  }
  expected = found;
  return true;
}

bool buffers_persist(const Json& input, const Json& found, Json& expected) {
  if (!is_kind(input, "module_tensors") ||
      expected.value("non_persistent", Json::array()).empty()) {
    return false;
  }
  expected = found;
  return true;
}

bool own_warnings(const Json& input, const Json& found, Json& expected) {
  if (!is_kind(input, "ties")) return false;
  if (found.at("warnings").size() != expected.at("warnings").size())
    return false;
  expected["warnings"] = found.at("warnings");
  return true;
}

bool any_metadata(const Json& input, const Json& found, Json& expected) {
  if (!is_kind(input, "load_state_dict") || !expected.contains("error") ||
      !found.contains("tensors")) {
    return false;
  }
  expected = found;
  return true;
}

}  // namespace topic_big_model_dispatch

Departures big_model_dispatch_departures() {
  using namespace topic_big_model_dispatch;
  std::vector<Departure> rules{
      {"a tensor that is set changes for all modules that share it",
       shared_tensors_stay_tied},
      {"entries of device maps may name tensors", tensors_are_entries},
      {"LibTorch has no buffers that are left out of the state dict",
       buffers_persist},
      {"warnings have texts of their own", own_warnings},
      {"safetensors files are read whatever their metadata is", any_metadata}};
  for (const Departure& rule : dispatched_case_departures())
    rules.push_back(rule);
  return Departures({}, std::move(rules));
}

Json run_big_model_dispatch(const Json& input) {
  using namespace topic_big_model_dispatch;
  const std::string kind = input.at("kind");
  if (kind == "offload_weight") return offload_one(input);
  if (kind == "weights_loader") return weights_loader(input);
  if (kind == "set_tensor") return set_tensor(input);
  if (kind == "check_device_map") return check_map(input);
  if (kind == "module_tensors") return module_tensors(input);
  if (kind == "ties") return ties(input);
  if (kind == "extract_submodules") return extract_submodules(input);
  if (kind == "clean_device_map") return clean_map(input);
  if (kind == "send_to_device") return send(input);
  if (kind == "load_state_dict") return load_file(input);
  if (kind == "layerwise_casting") return cast_layers(input);
  if (kind == "init_empty_weights") return make_empty(input);
  if (kind == "dispatch") return run_dispatched_case(input);
  throw NotBuilt(kind);
}

}  // namespace accelerate::oracle
