#include "big_model/quantize/quantized_sources.h"

#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>
#include <accelerate/weights.h>

#include "base/text/text.h"
#include "big_model/model/module_tensor.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"

namespace accelerate::detail {

namespace {

at::Tensor read_stored(const std::string& name, const StoredTensor& stored) {
  const auto dtype = torch_dtype(stored.dtype);
  if (!dtype) {
    throw CheckpointError(format(
        "[big_model] \"{}\" has dtype {}, which LibTorch lacks",
        printable(name),
        safetensors::name_of(stored.dtype)));
  }
  at::Tensor values = at::empty(
      torch_shape(stored.dtype, stored.shape),
      at::TensorOptions().dtype(*dtype));
  if (values.numel() > 0) {
    prefer_huge_pages(values);
    read_boxes(
        {{&stored,
          {safetensors::Shape(stored.shape.size(), 0), stored.shape},
          bytes_of(values)}});
  }
  return values;
}

}  // namespace

QuantizedSources::QuantizedSources(
    std::vector<QuantizedSource> sources,
    const std::filesystem::path& location,
    const std::function<std::string(const std::string&)>& rename)
    : sources_(std::move(sources)) {
  if (location.empty()) {
    require_finite();
    return;
  }
  LoadModelOptions reading;
  reading.rename = rename;
  stored_ = open_renamed(location, reading);
  for (const QuantizedSource& source : sources_) {
    Parts parts;
    const std::string prefix = source.module_name + ".";
    const std::string weight = prefix + "weight";
    for (auto item = stored_.lower_bound(prefix);
         item != stored_.end() && item->first.starts_with(prefix);
         ++item) {
      const std::string& name = item->first;
      if (name == weight || name.starts_with(weight + ".") ||
          name == prefix + "SCB" || name == prefix + "weight_format") {
        parts.emplace(name.substr(prefix.size()), &item->second);
      }
    }
    parts_.push_back(std::move(parts));
  }
  require_all(location);
}

void QuantizedSources::require_all(
    const std::filesystem::path& location) const {
  std::vector<std::string> complaints;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::string name = sources_[i].module_name + ".weight";
    const auto weight = parts_[i].find("weight");
    if (weight == parts_[i].end()) {
      complaints.push_back(name + " is not in the checkpoint");
      continue;
    }
    // The shape of an already quantised weight is compared when it is read.
    const bool is_quantized = parts_[i].size() > 1;
    const StoredTensor& stored = *weight->second;
    const auto shape = torch_shape(stored.dtype, stored.shape);
    if (is_quantized || sources_[i].parameter.sizes() == at::IntArrayRef(shape))
      continue;
    complaints.push_back(format(
        "{} has shape {} in the checkpoint and {} in the model",
        name,
        at::IntArrayRef(shape),
        sources_[i].parameter.sizes()));
  }
  require_fit(location, complaints);
}

void QuantizedSources::require_finite() const {
  for (const QuantizedSource& source : sources_) {
    if (at::isfinite(source.parameter).all().item<bool>()) continue;
    throw ConfigError(format(
        "[big_model] {}.weight must be finite to be quantised, but has "
        "infinite or NaN values; look for the step that made them",
        source.module_name));
  }
}

QuantizedWeight QuantizedSources::quantized(
    std::size_t source,
    const QuantizeWeightOptions& options,
    c10::ScalarType dtype) const {
  const auto& [module_name, parameter] = sources_[source];
  if (parts_.empty()) return QuantizedWeight(parameter.detach(), options);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, stored] : parts_[source])
    tensors.emplace(
        name, read_stored(format("{}.{}", module_name, name), *stored));
  if (tensors.size() == 1)
    return QuantizedWeight(tensors.at("weight").to(dtype), options);
  QuantizedWeight weight = QuantizedWeight::from_tensors(tensors);
  if (weight.sizes() == parameter.sizes()) return weight;
  throw CheckpointError(format(
      "[big_model] {}.weight is quantised with shape {} in the checkpoint, but "
      "has {} in the model",
      module_name,
      weight.sizes(),
      parameter.sizes()));
}

std::vector<std::string> QuantizedSources::names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    names.push_back(sources_[i].module_name + ".weight");
    for (const auto& [name, stored] : parts_[i]) {
      if (name != "weight")
        names.push_back(format("{}.{}", sources_[i].module_name, name));
    }
  }
  return names;
}

}  // namespace accelerate::detail
