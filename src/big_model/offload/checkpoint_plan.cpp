#include "big_model/offload/checkpoint_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/log.h>

#include "base/text/text.h"
#include "big_model/model/map_place.h"
#include "big_model/model/module_tensor.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

bool is_kept_in_fp32(
    const std::string& name,
    const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) {
    return name == module || name.find(module + ".") != std::string::npos;
  });
}

namespace {

class Planner {
 public:
  Planner(const torch::nn::Module& model, const LoadCheckpointOptions& options)
      : options_(options) {
    for (const auto& item : model.named_buffers()) buffers_.insert(item.key());
    for (const auto& [name, tensor] : get_state_dict(model))
      tensors_.emplace(name, tensor);
  }

  void add(const TensorInCheckpoint& saved) {
    if (matches_any(options_.skip, saved.name)) return;
    const auto found = tensors_.find(saved.name);
    if (found == tensors_.end()) {
      unexpected_.push_back(saved.name);
      return;
    }
    const at::Tensor& tensor = found->second;
    loaded_.insert(tensor.unsafeGetTensorImpl());
    if (tensor.sizes() != at::IntArrayRef(saved.shape)) {
      complaints_.push_back(format(
          "{} has shape {} in the checkpoint, but {} in the model",
          saved.name,
          at::IntArrayRef(saved.shape),
          tensor.sizes()));
    }
    if (keeper_of(tensor) != nullptr) {
      complaints_.push_back(format(
          "{} is already offloaded or sharded: load before the model is "
          "dispatched or prepared",
          saved.name));
    }
    place(saved, tensor);
  }

  void finish(const std::string& path) {
    std::vector<std::string> missing;
    for (const auto& [name, tensor] : tensors_) {
      if (!loaded_.contains(tensor.unsafeGetTensorImpl()) &&
          !matches_any(options_.skip, name) &&
          !matches_any(options_.allow_missing, name)) {
        missing.push_back(name);
      }
    }
    if (options_.strict && !missing.empty())
      complaints_.push_back("not in the checkpoint: " + name_list(missing));
    if (options_.strict && !unexpected_.empty())
      complaints_.push_back(
          "in the checkpoint only: " + name_list(unexpected_));
    if (!placeless_.empty()) {
      throw ConfigError(format(
          "[big_model] the device map gives no place to {}; add entries for "
          "them, or one for \"\"",
          name_list(placeless_)));
    }
    require_fit(path, complaints_);
    require_folder();
    if (!unexpected_.empty()) {
      Logger().log(
          LogLevel::warning,
          "big_model",
          format(
              "{} has tensors that the model does not have, "
              "which are not used: {}",
              path,
              name_list(unexpected_)));
    }
    settle_shared();
  }

  std::vector<TensorToLoad> take() { return std::move(plan_); }

 private:
  void place(const TensorInCheckpoint& saved, const at::Tensor& tensor) {
    TensorToLoad item;
    item.name = saved.name;
    item.tensor = tensor;
    item.shape = saved.shape;
    item.file_dtype = saved.dtype;
    item.dtype = tensor.scalar_type();
    item.device = tensor.is_meta() ? c10::Device(c10::kCPU) : tensor.device();
    bool takes_file_dtype = false;
    if (!options_.device_map.empty()) {
      const auto place = options_.device_map.device_of(saved.name);
      if (!place) {
        placeless_.push_back(saved.name);
        return;
      }
      item.to_disk = place->is_disk() &&
          (options_.offload_buffers || !buffers_.contains(saved.name));
      item.stays = !item.to_disk && !place->is_meta();
      takes_file_dtype =
          item.to_disk || (place->is_cpu() && options_.offload_state_dict);
      if (!places_.contains(place->name()))
        places_.emplace(place->name(), torch_device(*place));
      item.device = places_.at(place->name());
    }
    if (takes_file_dtype) item.dtype = saved.dtype;
    if (options_.dtype && at::isFloatingType(saved.dtype)) {
      const bool is_kept = *options_.dtype == at::kHalf &&
          is_kept_in_fp32(saved.name, options_.keep_in_fp32_modules);
      item.dtype = is_kept ? at::kFloat : *options_.dtype;
    }
    plan_.push_back(std::move(item));
  }

  void require_folder() const {
    const bool uses_disk = std::ranges::any_of(
        plan_, [](const auto& each) { return each.to_disk; });
    if (!uses_disk || !options_.offload_folder.empty()) return;
    throw ConfigError(
        "[big_model] the device map puts modules on the disk, so "
        "offload_folder must say where");
  }

  // A tensor with several names stays if one of them does, under that name.
  void settle_shared() {
    std::set<const void*> staying;
    for (const TensorToLoad& item : plan_)
      if (item.stays) staying.insert(item.tensor.unsafeGetTensorImpl());
    for (TensorToLoad& item : plan_) {
      if (!item.stays && staying.contains(item.tensor.unsafeGetTensorImpl()))
        item.tensor = at::Tensor();
    }
  }

  const LoadCheckpointOptions& options_;
  std::map<std::string, at::Tensor> tensors_;
  std::set<std::string> buffers_;
  std::set<const void*> loaded_;
  std::map<std::string, c10::Device> places_;
  std::vector<TensorToLoad> plan_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> placeless_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::vector<TensorInCheckpoint> tensors_in_order(const StoredTensors& saved) {
  using Key = std::tuple<std::string, std::size_t, std::uint64_t, std::string>;
  std::map<Key, const StoredTensors::value_type*> order;
  for (const auto& item : saved) {
    const StoredTensor& stored = item.second;
    const bool has_box = !stored.boxes.empty();
    order.emplace(
        Key{has_box ? stored.boxes.front().file->path().string() : "",
            stored.place,
            has_box ? stored.boxes.front().offset : 0,
            item.first},
        &item);
  }
  std::vector<TensorInCheckpoint> tensors;
  for (const auto& [key, item] : order) {
    const auto& [name, stored] = *item;
    const auto dtype = torch_dtype(stored.dtype);
    if (!dtype) {
      throw CheckpointError(format(
          "[big_model] \"{}\" of {} has dtype {}, which LibTorch lacks",
          printable(name),
          std::get<0>(key),
          safetensors::name_of(stored.dtype)));
    }
    tensors.push_back({name, *dtype, torch_shape(stored.dtype, stored.shape)});
  }
  return tensors;
}

std::vector<TensorToLoad> plan_loading(
    const torch::nn::Module& model,
    const std::vector<TensorInCheckpoint>& saved,
    const std::string& path,
    const LoadCheckpointOptions& options) {
  Planner planner(model, options);
  for (const TensorInCheckpoint& tensor : saved) planner.add(tensor);
  planner.finish(path);
  return planner.take();
}

}  // namespace accelerate::detail
