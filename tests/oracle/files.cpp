#include "oracle/files.h"

#include <algorithm>
#include <charconv>
#include <fstream>

#include "base/files/files.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "format/torch/torch_file.h"
#include "oracle/digests.h"

namespace accelerate::oracle {

namespace {

namespace fs = std::filesystem;
using detail::Pickle;
using detail::TorchFile;
using Kind = Pickle::Kind;

// The shortest decimal that parses to the same value.
template <class T>
Json shortest(T value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return Json::parse(std::string(text, end));
}

Json value_at(const at::Tensor& flat, std::int64_t i) {
  const at::Tensor one = flat[i];
  if (flat.scalar_type() == at::kBool) return one.item<bool>();
  if (flat.scalar_type() == at::kDouble) return shortest(one.item<double>());
  if (flat.is_floating_point()) {
    return shortest(one.to(at::kFloat).item<float>());
  }
  if (flat.scalar_type() == at::kUInt64) {
    return one.view(at::kLong).item<std::int64_t>();
  }
  return one.item<std::int64_t>();
}

at::Tensor tensor_of(
    safetensors::Dtype dtype,
    const safetensors::Shape& shape,
    std::span<const std::byte> bytes) {
  const at::Tensor tensor = at::empty(
      detail::torch_shape(dtype, shape),
      at::TensorOptions().dtype(*detail::torch_dtype(dtype)));
  std::copy(bytes.begin(), bytes.end(), detail::bytes_of(tensor).begin());
  return tensor;
}

Json tree_of(const TorchFile& file, const Pickle::Value& value) {
  if (const auto tensor = file.tensor(value)) {
    return {
        {"tensor",
         describe_tensor(
             tensor_of(tensor->dtype, tensor->sizes, tensor->contiguous()))}};
  }
  switch (value.kind()) {
    case Kind::none:
      return {{"value", nullptr}};
    case Kind::boolean:
      return {{"value", value.integer() != 0}};
    case Kind::integer:
      return {{"value", value.integer()}};
    case Kind::real:
      return {{"value", shortest(value.real())}};
    case Kind::text:
      return {{"value", std::string(value.text())}};
    case Kind::list:
    case Kind::tuple: {
      Json items = Json::array();
      for (std::size_t i = 0; i < value.size(); ++i) {
        items.push_back(tree_of(file, value.item(i)));
      }
      return {{value.kind() == Kind::list ? "list" : "tuple", items}};
    }
    case Kind::call:
      if (value.is_call_of("collections OrderedDict") ||
          value.is_call_of("collections Counter") ||
          value.is_call_of("collections defaultdict")) {
        break;
      }
      return {{"opaque", "call"}};
    case Kind::dict:
      break;
    default:
      return {{"opaque", "other"}};
  }
  const bool is_counter =
      value.is_call_of("collections Counter") && value.item(1).size() == 1;
  if (is_counter) return tree_of(file, value.item(1).item(0));
  Json pairs = Json::array();
  if (value.kind() == Kind::dict || value.size() > 2) {
    const Pickle::Value dict = value.as_dict();
    for (std::size_t i = 0; i < dict.size(); ++i) {
      const Pickle::Value key = dict.key(i);
      pairs.push_back(
          {key.kind() == Kind::text ? Json(std::string(key.text()))
                                    : Json(key.integer()),
           tree_of(file, dict.value(i))});
    }
  }
  return {{"dict", std::move(pairs)}};
}

Json describe_safetensors(const fs::path& path) {
  const safetensors::Reader reader(path);
  Json tensors = Json::array();
  for (const auto& [name, info] : reader.header().tensors) {
    tensors.push_back(
        {name,
         describe_tensor(
             tensor_of(info.dtype, info.shape, reader.bytes(name)))});
  }
  return {
      {"file", path.filename().string()},
      {"format", "safetensors"},
      {"metadata", reader.header().metadata},
      {"tensors", std::move(tensors)}};
}

Json describe_torch(const fs::path& path) {
  const TorchFile file(path);
  Json content = tree_of(file, file.root());
  const std::string name = path.filename().string();
  if (name.starts_with("random_states_")) {
    Json shown = Json::array();
    for (const Json& pair : content.at("dict")) {
      if (pair[0] == "step" || pair[0] == "torch_manual_seed") {
        shown.push_back(pair);
      }
    }
    content = {{"dict", std::move(shown)}};
  }
  return {{"file", name}, {"format", "torch"}, {"content", std::move(content)}};
}

}  // namespace

Json describe_tensor(const at::Tensor& tensor) {
  constexpr std::int64_t kMostShown = 64;
  const at::Tensor flat = tensor.detach().cpu().contiguous().view({-1});
  const std::span<const std::byte> bytes = detail::bytes_of(flat);
  Json data;
  if (flat.numel() <= kMostShown) {
    data = Json::array();
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      data.push_back(value_at(flat, i));
    }
  }
  return {
      {"dtype", name_of(tensor.scalar_type())},
      {"shape", tensor.sizes().vec()},
      {"data", std::move(data)},
      {"bytes", bytes.size()},
      {"sha256", sha256(bytes)},
      {"fnv1a64", fnv1a64(bytes)}};
}

Json describe_files(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(directory)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  Json files = Json::array();
  for (const fs::path& path : paths) {
    if (path.extension() == ".safetensors") {
      files.push_back(describe_safetensors(path));
    } else if (path.extension() == ".json") {
      files.push_back(
          {{"file", path.filename().string()},
           {"format", "text"},
           {"text", detail::read_file(path)}});
    } else {
      files.push_back(describe_torch(path));
    }
  }
  return files;
}

}  // namespace accelerate::oracle
