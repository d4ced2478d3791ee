#include <accelerate/offload.h>

#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/module_tensors.h>

#include "base/files/files.h"
#include "base/text/text.h"
#include "big_model/offload/file_mapping.h"
#include "big_model/offload/offload_folder.h"
#include "big_model/offload/offload_index.h"
#include "big_model/offload/weight_dtype.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate {

namespace {

namespace fs = std::filesystem;
using detail::format;

c10::ScalarType require_dtype(const std::string& name) {
  const auto dtype = detail::parse_torch_dtype(name);
  if (!dtype) {
    throw CheckpointError(format(
        "[big_model] an offloaded weight has dtype "
        "\"{}\", which LibTorch lacks",
        detail::printable(name)));
  }
  return *dtype;
}

}  // namespace

OffloadedWeight offload_weight(
    const at::Tensor& weight,
    const std::string& name,
    const fs::path& folder) {
  const std::string dtype = detail::dtype_name(weight.scalar_type());
  detail::OffloadFolderWriter writer(detail::make_file_system(), folder);
  writer.put_file(name, detail::to_write(name, weight));
  writer.commit();
  return {.dtype = dtype, .shape = weight.sizes().vec()};
}

at::Tensor load_offloaded_weight(
    const fs::path& file,
    const OffloadedWeight& weight) {
  if (!weight.safetensors_file.empty()) {
    throw ConfigError(format(
        "[big_model] {} does not hold the weight, which is in {}; use an "
        "OffloadedWeightsLoader",
        file.string(),
        weight.safetensors_file.string()));
  }
  const c10::ScalarType dtype = require_dtype(weight.dtype);
  static_cast<void>(detail::stored_in_dat_file(file, weight));
  return detail::FileMapping::open(file)->tensor(0, dtype, weight.shape);
}

void save_offload_index(const OffloadIndex& index, const fs::path& folder) {
  if (index.empty()) return;
  detail::OffloadFolderWriter writer(detail::make_file_system(), folder);
  for (const auto& [name, weight] : index.entries())
    writer.put_entry(name, weight);
  writer.commit();
}

OffloadIndex load_offload_index(const fs::path& folder) {
  const fs::path file = folder / detail::kOffloadIndexName;
  if (!fs::exists(file)) {
    throw CheckpointError(format(
        "[big_model] {} has no {}: it is not an offload folder, or was not "
        "completely filled",
        folder.string(),
        detail::kOffloadIndexName));
  }
  return detail::parse_offload_index(detail::read_file(file), file.string());
}

void offload_state_dict(const fs::path& folder, const WeightList& state_dict) {
  std::vector<std::pair<std::string, std::uint64_t>> sizes;
  for (const auto& [name, weight] : state_dict)
    sizes.emplace_back(name, static_cast<std::uint64_t>(weight.nbytes()));
  detail::require_space(folder, sizes);
  detail::OffloadFolderWriter writer(detail::make_file_system(), folder);
  for (const auto& [name, weight] : state_dict) {
    writer.put(
        name,
        detail::dtype_name(weight.scalar_type()),
        detail::to_write(name, weight));
  }
  writer.commit();
}

WeightMapping::~WeightMapping() = default;

PrefixedDataset::PrefixedDataset(
    const WeightMapping& mapping,
    std::string prefix)
    : mapping_(mapping), prefix_(std::move(prefix)) {}

std::vector<std::string> PrefixedDataset::keys() const {
  std::vector<std::string> keys;
  for (const std::string& key : mapping_.keys())
    if (key.starts_with(prefix_)) keys.push_back(key.substr(prefix_.size()));
  return keys;
}

at::Tensor PrefixedDataset::at(const std::string& key) const {
  return mapping_.at(prefix_ + key);
}

WeightList extract_submodules_state_dict(
    const WeightList& state_dict,
    const std::vector<std::string>& submodule_names) {
  WeightList extracted;
  std::unordered_map<std::string, bool> taken;
  for (const std::string& submodule : submodule_names) {
    for (const auto& [name, weight] : state_dict) {
      const bool is_below =
          name == submodule || name.starts_with(submodule + ".");
      if (is_below && taken.emplace(name, true).second)
        extracted.emplace_back(name, weight);
    }
  }
  return extracted;
}

void load_offloaded_weights(
    torch::nn::Module& model,
    const OffloadIndex& index,
    const fs::path& offload_folder) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, weight] : index.entries()) {
    const at::Tensor value = weight.safetensors_file.empty()
        ? load_offloaded_weight(
              detail::offloaded_file(offload_folder, name), weight)
        : OffloadedWeightsLoader({.index = OffloadIndex({{name, weight}})})
              .at(name);
    set_module_tensor_to_device(
        model, name, at::kCPU, {.value = value.clone()});
  }
}

}  // namespace accelerate
