#include "oracle/big_model/recorded_model.h"

#include <charconv>
#include <cmath>

#include <ATen/Functions.h>

#include "big_model/offload/weight_dtype.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "oracle/digests.h"

namespace accelerate::oracle {

namespace recorded_values {

// The value at a flat position of a described tensor.
double described_value(
    std::int64_t position,
    std::int64_t fill,
    c10::ScalarType dtype,
    bool positive) {
  const std::int64_t k = (7 * position + 13 * fill) % 17;
  if (dtype == at::kBool) return static_cast<double>(k % 2);
  if (at::isIntegralType(dtype, false)) return static_cast<double>(k);
  const auto value = static_cast<double>(k);
  return positive ? 1 + value / 16 : (value - 8) / 16;
}

Json element_json(double value, c10::ScalarType dtype) {
  if (dtype == at::kBool) return value != 0;
  if (at::isIntegralType(dtype, false)) return static_cast<std::int64_t>(value);
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  const auto end = dtype == at::kDouble
      ? std::to_chars(text, text + sizeof text, value).ptr
      : std::to_chars(text, text + sizeof text, static_cast<float>(value)).ptr;
  return Json::parse(std::string(text, end));
}

}  // namespace recorded_values

using namespace recorded_values;

at::ScalarType any_dtype(const std::string& name) {
  const auto dtype = detail::parse_torch_dtype(name);
  if (!dtype) throw NotBuilt("dtype " + name);
  return *dtype;
}

at::Tensor described_tensor(const Json& description) {
  if (description.contains("values")) {
    return at::tensor(
               description.at("values").get<std::vector<double>>(), at::kDouble)
        .to(any_dtype(description.at("dtype")));
  }
  const c10::ScalarType dtype = any_dtype(description.at("dtype"));
  const auto shape = description.at("shape").get<std::vector<std::int64_t>>();
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    values.push_back(described_value(
        i,
        description.at("fill"),
        dtype,
        description.value("positive", false)));
  }
  return at::tensor(values, at::kDouble).to(dtype).view(shape);
}

std::string digest_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().cpu().contiguous();
  return fnv1a64(detail::bytes_of(flat));
}

Json tensor_json(const at::Tensor& tensor, bool with_digest) {
  const c10::ScalarType dtype = tensor.scalar_type();
  Json data;
  if (!at::isComplexType(dtype)) {
    data = Json::array();
    const at::Tensor flat =
        tensor.detach().cpu().to(at::kDouble).contiguous().view({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i)
      data.push_back(element_json(flat.const_data_ptr<double>()[i], dtype));
  }
  Json json{
      {"dtype", detail::dtype_name(dtype)},
      {"shape", tensor.sizes().vec()},
      {"data", std::move(data)}};
  if (with_digest) {
    json["bytes"] = tensor.nbytes();
    json["fnv1a64"] = digest_of(tensor);
  }
  return json;
}

RecordedModel::RecordedModel(const Json& module)
    : Module(module.at("class").get<std::string>()),
      class_(module.at("class")) {
  for (const Json& entry : module.at("parameters")) {
    const at::Tensor tensor = described_tensor(entry[1]);
    register_parameter(
        entry[0], tensor, at::isFloatingType(tensor.scalar_type()));
  }
  for (const Json& entry : module.at("buffers"))
    register_buffer(entry[0], described_tensor(entry[1]));
  for (const Json& entry : module.at("children")) {
    below_.emplace_back(entry[0], std::make_shared<RecordedModel>(entry[1]));
    register_module(below_.back().first, below_.back().second);
  }
}

at::Tensor RecordedModel::own(const std::string& name) const {
  const auto parameters = named_parameters(false);
  if (const auto* const tensor = parameters.find(name)) return *tensor;
  const auto buffers = named_buffers(false);
  if (const auto* const tensor = buffers.find(name)) return *tensor;
  return {};
}

at::Tensor RecordedModel::run_layer(const at::Tensor& x) {
  constexpr double kEpsilon = 1e-5;
  if (class_ == "Linear") return at::linear(x, own("weight"), own("bias"));
  if (class_ == "Embedding") return at::embedding(own("weight"), x);
  if (class_ == "ReLU") return at::relu(x);
  if (class_ == "LayerNorm") {
    const at::Tensor weight = own("weight");
    return at::layer_norm(x, weight.sizes(), weight, own("bias"), kEpsilon);
  }
  if (class_ == "BatchNorm1d") {
    return at::batch_norm(
        x,
        own("weight"),
        own("bias"),
        own("running_mean"),
        own("running_var"),
        /*training=*/false,
        /*momentum=*/0.1,
        kEpsilon,
        /*cudnn_enabled=*/false);
  }
  if (class_ == "Direct") {
    const RecordedModel& dense = *below_.at(0).second;
    return at::linear(x, dense.own("weight"), dense.own("bias"));
  }
  throw NotBuilt("class " + class_);
}

at::Tensor RecordedModel::run_children(at::Tensor x) {
  for (const auto& [name, child] : below_)
    x = child->class_ == "ModuleList" ? child->run_children(x)
                                      : child->forward(x);
  return x;
}

at::Tensor RecordedModel::forward(const at::Tensor& x) {
  if (class_ != "Block" && class_ != "Model") return run_layer(x);
  at::Tensor y = run_children(x);
  if (class_ == "Block") y = y + x;
  if (const at::Tensor scale = own("scale"); scale.defined()) y = y * scale;
  if (const at::Tensor shift = own("shift"); shift.defined()) y = y + shift;
  return y;
}

RecordedModel& RecordedModel::owner_of(
    const std::string& name,
    std::string& last) {
  const std::size_t dot = name.find('.');
  if (dot == std::string::npos) {
    last = name;
    return *this;
  }
  for (auto& [child_name, child] : below_) {
    if (child_name == name.substr(0, dot))
      return child->owner_of(name.substr(dot + 1), last);
  }
  throw std::out_of_range(name);
}

at::Tensor RecordedModel::find(const std::string& name) const {
  const auto parameters = named_parameters();
  if (const auto* const tensor = parameters.find(name)) return *tensor;
  return named_buffers()[name];
}

void RecordedModel::replace(const std::string& name, const at::Tensor& tensor) {
  std::string last;
  RecordedModel& owner = owner_of(name, last);
  owner.parameters_[last] = tensor;
}

void RecordedModel::tie(const Json& groups) {
  for (const Json& group : groups) {
    const at::Tensor first = find(group[0]);
    for (const Json& name : group) replace(name, first);
  }
}

void RecordedModel::empty(const Json& which) {
  if (which.is_null()) return;
  const auto on_meta = [](at::Tensor tensor) {
    const bool requires_grad = tensor.requires_grad();
    tensor.unsafeGetTensorImpl()->shallow_copy_from(
        at::empty_like(tensor, tensor.options().device(at::kMeta))
            .getIntrusivePtr());
    tensor.requires_grad_(requires_grad);
  };
  for (const at::Tensor& tensor : parameters()) on_meta(tensor);
  if (which == "all")
    for (const at::Tensor& tensor : buffers()) on_meta(tensor);
}

RecordedModel& RecordedModel::module(const Json& name) {
  if (name.is_null()) return *this;
  std::string last;
  return owner_of(name.get<std::string>() + ".", last);
}

std::shared_ptr<RecordedModel> recorded_model(const Json& input) {
  auto model = std::make_shared<RecordedModel>(input.at("module"));
  model->tie(input.value("tied", Json::array()));
  model->empty(input.value("meta", Json()));
  model->eval();
  return model;
}

at::Tensor recorded_input(const Json& input, const RecordedModel& model) {
  const at::Tensor x = described_tensor(input.at("x"));
  if (!x.is_floating_point()) return x;
  for (const at::Tensor& parameter : model.parameters())
    if (parameter.is_floating_point()) return x.to(parameter.scalar_type());
  return x;
}

DeviceMap device_map_of(const Json& pairs) {
  std::vector<std::pair<std::string, MapDevice>> entries;
  for (const Json& pair : pairs) {
    const MapDevice device = pair[1].is_number()
        ? MapDevice(pair[1].get<int>())
        : MapDevice(pair[1].get<std::string>());
    entries.emplace_back(pair[0], device);
  }
  return DeviceMap(entries);
}

}  // namespace accelerate::oracle
