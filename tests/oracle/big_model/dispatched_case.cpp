#include "oracle/big_model/dispatched_case.h"

#include <filesystem>
#include <map>
#include <set>
#include <stdexcept>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/big_model.h>
#include <accelerate/load_checkpoint.h>
#include <accelerate/module_tensors.h>

#include "big_model/model/offload_keeper.h"
#include "big_model/offload/weight_dtype.h"
#include "oracle/big_model/recorded_files.h"
#include "oracle/big_model/recorded_model.h"
#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate::oracle {

namespace dispatched_case {

namespace fs = std::filesystem;

using Model = std::shared_ptr<RecordedModel>;

// Calls `visit` with every parameter and then every buffer.
template <class Visit>
void for_each_tensor(const RecordedModel& model, Visit&& visit) {
  for (const auto& tensors : {model.named_parameters(), model.named_buffers()})
    for (const auto& item : tensors) visit(item.key(), item.value());
}

Json away_json(const RecordedModel& model) {
  Json away = Json::array();
  for_each_tensor(
      model, [&](const std::string& name, const at::Tensor& tensor) {
        const detail::OffloadedUnit unit = detail::offloaded_unit(tensor);
        if (unit.keeper != nullptr && unit.keeper->is_offloaded(unit.unit))
          away.push_back(name);
      });
  return away;
}

Json dtypes_json(const RecordedModel& model) {
  Json dtypes = Json::array();
  for_each_tensor(
      model, [&](const std::string& name, const at::Tensor& tensor) {
        dtypes.push_back({name, detail::dtype_name(tensor.scalar_type())});
      });
  return dtypes;
}

Json map_json(const DeviceMap& map) {
  Json pairs = Json::array();
  for (const Placement& each : map.placements()) {
    const std::string device = each.device.name();
    const bool is_host = device == "cpu" || device == "disk";
    pairs.push_back({each.name, is_host ? Json(device) : Json(0)});
  }
  return pairs;
}

// Simulates the recorded accelerator 0 in host memory, if the case needs it.
void provide_accelerators(const Json& input) {
  const Json map = input.value("device_map", Json());
  bool has_accelerator = input.value("main_device", Json()).is_number();
  if (map.is_array())
    for (const Json& pair : map) has_accelerator |= pair[1].is_number();
  if (has_accelerator) testing::pretend_device(0);
}

template <class T>
T value_or_default(const Json& input, const char* name) {
  const Json value = input.value(name, Json());
  return value.is_null() ? T() : value.get<T>();
}

// Changes the values in a module tree's description.
void change_fills(Json& module, int by) {
  for (const char* const kind : {"parameters", "buffers"}) {
    for (Json& entry : module.at(kind)) {
      if (entry[1].contains("fill"))
        entry[1]["fill"] = entry[1].at("fill").get<int>() + by;
    }
  }
  for (Json& child : module.at("children")) change_fills(child[1], by);
}

// Collects names that Python's state dicts leave out; LibTorch's leave out
// none.
void collect_non_persistent(
    const Json& module,
    const std::string& prefix,
    std::set<std::string>& names) {
  for (const Json& entry : module.at("buffers")) {
    if (!entry[1].value("persistent", true))
      names.insert(prefix + entry[0].get<std::string>());
  }
  for (const Json& child : module.at("children")) {
    collect_non_persistent(
        child[1], prefix + child[0].get<std::string>() + ".", names);
  }
}

std::set<std::string> non_persistent(const Json& input) {
  std::set<std::string> names;
  collect_non_persistent(input.at("module"), "", names);
  return names;
}

// Writes the folder of an earlier run, with the same tensors and different
// values.
void fill_folder(Json input, const fs::path& folder) {
  change_fills(input.at("module"), 3);
  const auto left_out = non_persistent(input);
  fs::create_directories(folder);
  OffloadIndex index;
  for (const auto& [name, tensor] : get_state_dict(*recorded_model(input)))
    if (!left_out.contains(name))
      index.set(name, offload_weight(tensor, name, folder));
  save_offload_index(index, folder);
}

/// A case's folders.
struct Folders {
  explicit Folders(const fs::path& root)
      : offload(root / "offload"),
        checkpoint(root / "checkpoint"),
        weights(root / "weights.safetensors") {}

  fs::path offload;
  fs::path checkpoint;
  fs::path weights;
};

DispatchedModel<Model> dispatch_in_memory(
    const Model& model,
    const Json& input,
    const Folders& folders) {
  DispatchOptions options{
      .device_map = device_map_of(input.at("device_map")),
      .offload_dir =
          input.at("has_offload_folder") == true ? folders.offload : fs::path(),
      .offload_buffers = input.at("offload_buffers"),
      .preload_module_classes = value_or_default<std::vector<std::string>>(
          input, "preload_module_classes"),
      .force_hooks = input.at("force_hooks")};
  if (!input.at("main_device").is_null())
    options.main_device = MapDevice(input.at("main_device").get<int>());
  if (input.at("offload_index") == true) {
    write_safetensors(folders.weights, get_state_dict(*model), {});
    for (const auto& [name, tensor] : get_state_dict(*model)) {
      OffloadedWeight weight;
      weight.safetensors_file = folders.weights;
      weight.weight_name = name;
      weight.dtype = detail::dtype_name(tensor.scalar_type());
      weight.shape = tensor.sizes().vec();
      options.offload_index.set(name, weight);
    }
    options.offload_dir.clear();
  }
  return dispatch_model(model, options);
}

DispatchedModel<Model>
load(const Model& model, const Json& input, const Folders& folders) {
  LoadAndDispatchOptions options{
      .offload_folder =
          input.at("has_offload_folder") == true ? folders.offload : fs::path(),
      .offload_buffers = input.at("offload_buffers"),
      .preload_module_classes = value_or_default<std::vector<std::string>>(
          input, "preload_module_classes"),
      .force_hooks = input.at("force_hooks"),
      .strict = input.at("strict")};
  if (!input.at("dtype").is_null())
    options.dtype = any_dtype(input.at("dtype"));
  if (!input.value("offload_state_dict", Json()).is_null())
    options.offload_state_dict = input.at("offload_state_dict").get<bool>();
  const Json& map = input.at("device_map");
  if (map.is_string()) options.device_map = map.get<std::string>();
  if (map.is_array()) options.device_map = device_map_of(map);
  for (const Json& pair : input.value("max_memory", Json::array()))
    options.max_memory.emplace_back(
        MapDevice(pair[0].get<std::string>()),
        ByteSize(pair[1].get<std::int64_t>()));
  const fs::path checkpoint =
      write_checkpoint(input.at("checkpoint"), folders.checkpoint);
  return load_checkpoint_and_dispatch(model, checkpoint, options);
}

DispatchedModel<Model>
dispatch(const Model& model, const Json& input, const Folders& folders) {
  const std::string method = input.at("method");
  if (method == "dispatch_model")
    return dispatch_in_memory(model, input, folders);
  if (method == "load_checkpoint_and_dispatch")
    return load(model, input, folders);
  const OffloadOptions options{
      .offload_buffers = input.at("offload_buffers"),
      .preload_module_classes = value_or_default<std::vector<std::string>>(
          input, "preload_module_classes")};
  return method == "cpu_offload"
      ? cpu_offload(model, options)
      : disk_offload(model, folders.offload, options);
}

// The model with all weights in memory; null if it cannot be computed that way.
Model in_memory(const Json& input, const Folders& folders) {
  Json whole = input;
  whole["meta"] = nullptr;
  try {
    const Model model = recorded_model(whole);
    if (!input.contains("checkpoint")) {
      if (!input.value("existing_folder", false)) return model;
      return nullptr;
    }
    LoadCheckpointOptions options;
    if (!input.at("dtype").is_null())
      options.dtype = any_dtype(input.at("dtype"));
    load_checkpoint_in_model(
        *model,
        write_checkpoint(input.at("checkpoint"), folders.checkpoint),
        options);
    return model;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void check_output(
    const Json& input,
    const Folders& folders,
    const at::Tensor& x,
    const at::Tensor& output) {
  const Model model = in_memory(input, folders);
  if (model == nullptr) return;
  at::Tensor expected;
  try {
    expected = model->forward(x);
  } catch (const std::exception&) {
    return;
  }
  const bool is_low = c10::elementSize(output.scalar_type()) == 2;
  const double tolerance = is_low ? 5e-2 : 1e-5;
  if (output.scalar_type() == expected.scalar_type() &&
      !at::allclose(output, expected, tolerance, tolerance)) {
    throw std::logic_error("the output is not that of the model in memory");
  }
}

Json forward_json(DispatchedModel<Model>& big, const at::Tensor& x) {
  try {
    const at::Tensor output = big(x);
    return {{"output", tensor_json(output)}, {"again", big(x).equal(output)}};
  } catch (const std::exception& error) {
    return {{"error", error.what()}};
  }
}

// What Accelerate's get_state_dict_offloaded_model() collects.
Json state_dict_json(RecordedModel& model, const Json& input) {
  const auto left_out = non_persistent(input);
  std::map<std::string, Json> all;
  for (const auto& item : model.named_modules()) {
    const std::string prefix = item.key().empty() ? "" : item.key() + ".";
    align_module_device(*item.value(), std::nullopt, [&] {
      for (const auto& tensors :
           {item.value()->named_parameters(false),
            item.value()->named_buffers(false)}) {
        for (const auto& tensor : tensors) {
          const std::string name = prefix + tensor.key();
          if (left_out.contains(name)) continue;
          all[name] = {
              name,
              detail::dtype_name(tensor.value().scalar_type()),
              digest_of(tensor.value())};
        }
      }
    });
  }
  Json list = Json::array();
  for (auto& [name, entry] : all) list.push_back(std::move(entry));
  return list;
}

}  // namespace dispatched_case

Json run_dispatched_case(const Json& input) {
  using namespace dispatched_case;
  const at::NoGradGuard no_grad;
  provide_accelerators(input);
  const testing::TemporaryDirectory directory;
  const Folders folders(directory.path());
  if (input.value("existing_folder", false))
    fill_folder(input, folders.offload);
  const Model model = recorded_model(input);
  Json found;
  const char* stage = "call";
  try {
    auto big = dispatch(model, input, folders);
    const bool has_map =
        input.contains("device_map") && !input.at("device_map").is_null();
    found["device_map"] = has_map ? map_json(big.device_map()) : Json();
    found["dtypes"] = dtypes_json(*model);
    found["away"] = away_json(*model);
    found["tied_now"] = find_tied_parameters(*model);
    found["folder"] =
        fs::exists(folders.offload) ? folder_json(folders.offload) : Json();
    stage = "forward";
    const at::Tensor x = recorded_input(input, *model);
    found["forward"] = forward_json(big, x);
    if (!found["forward"].contains("error"))
      check_output(input, folders, x, big(x));
    found["away_after_forward"] = away_json(*model);
    stage = "state_dict";
    found["state_dict"] = state_dict_json(*model, input);
    stage = "removal";
    big.dispatch().release();
    found["away_after_removal"] = away_json(*model);
    return found;
  } catch (const NotBuilt&) {
    throw;
  } catch (const std::exception& error) {
    return {{"error", "Error"}, {"stage", stage}, {"message", error.what()}};
  }
}

}  // namespace accelerate::oracle
