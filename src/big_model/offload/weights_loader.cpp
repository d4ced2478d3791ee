#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <accelerate/error.h>
#include <accelerate/offload.h>
#include <accelerate/safetensors.h>

#include "base/text/text.h"
#include "big_model/offload/file_mapping.h"
#include "big_model/offload/offload_folder.h"
#include "big_model/offload/weight_dtype.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate {

namespace {

namespace fs = std::filesystem;
using detail::format;

}  // namespace

struct OffloadedWeightsLoader::State {
  /// An open safetensors file.
  struct File {
    safetensors::Reader reader;
    std::shared_ptr<detail::FileMapping> mapping;
  };

  fs::path folder;
  c10::Device device = c10::kCPU;
  std::unordered_map<std::string, at::Tensor> in_memory;
  OffloadIndex index;
  std::vector<std::string> keys;
  std::mutex mutex;
  std::map<fs::path, std::shared_ptr<File>> files;

  std::shared_ptr<File> open(const fs::path& path) {
    const std::lock_guard lock(mutex);
    std::shared_ptr<File>& file = files[path];
    if (!file) {
      file = std::make_shared<File>(
          File{safetensors::Reader(path), detail::FileMapping::open(path)});
    }
    return file;
  }

  at::Tensor read(const std::string& name, const OffloadedWeight& weight) {
    if (weight.safetensors_file.empty()) {
      return load_offloaded_weight(
          detail::offloaded_file(folder, name), weight);
    }
    const auto file = open(weight.safetensors_file);
    const safetensors::TensorInfo& info = file->reader.info(
        weight.weight_name.empty() ? name : weight.weight_name);
    const auto dtype = detail::torch_dtype(info.dtype);
    if (!dtype) {
      throw CheckpointError(format(
          "[big_model] \"{}\" of {} has dtype {}, which LibTorch lacks",
          detail::printable(name),
          weight.safetensors_file.string(),
          safetensors::name_of(info.dtype)));
    }
    const std::uint64_t begin = file->reader.header().data_begin + info.begin;
    const std::vector<std::int64_t> shape =
        detail::torch_shape(info.dtype, info.shape);
    at::Tensor tensor;
    if (begin % c10::elementSize(*dtype) == 0) {
      tensor = file->mapping->tensor(begin, *dtype, shape);
    } else {
      tensor = at::empty(shape, at::TensorOptions().dtype(*dtype));
      const auto bytes = file->reader.bytes(
          weight.weight_name.empty() ? name : weight.weight_name);
      std::ranges::copy(bytes, detail::bytes_of(tensor).begin());
    }
    if (weight.dtype.empty()) return tensor;
    const auto wanted = detail::parse_torch_dtype(weight.dtype);
    if (!wanted) {
      throw CheckpointError(format(
          "[big_model] the dtype of \"{}\" in the index must be one of "
          "PyTorch's, but is \"{}\"",
          detail::printable(name),
          detail::printable(weight.dtype)));
    }
    return tensor.to(*wanted);
  }
};

OffloadedWeightsLoader::OffloadedWeightsLoader(OffloadedWeightsSources sources)
    : state_(std::make_unique<State>()) {
  if (sources.state_dict.empty() && sources.save_folder.empty() &&
      sources.index.empty()) {
    throw ConfigError(
        "[big_model] an OffloadedWeightsLoader needs a state_dict, a "
        "save_folder or an index");
  }
  state_->device = sources.device;
  state_->index = std::move(sources.index);
  state_->folder = std::move(sources.save_folder);
  const bool has_folder_index = !state_->folder.empty() &&
      fs::exists(state_->folder / detail::kOffloadIndexName);
  if (has_folder_index || (!state_->folder.empty() && state_->index.empty())) {
    const OffloadIndex found = load_offload_index(state_->folder);
    for (const auto& [name, weight] : found.entries())
      if (state_->index.find(name) == nullptr) state_->index.set(name, weight);
  }
  for (auto& [name, weight] : sources.state_dict) {
    state_->keys.push_back(name);
    state_->in_memory.emplace(name, std::move(weight));
  }
  for (const auto& [name, weight] : state_->index.entries())
    if (!state_->in_memory.contains(name)) state_->keys.push_back(name);
}

OffloadedWeightsLoader::~OffloadedWeightsLoader() = default;

std::vector<std::string> OffloadedWeightsLoader::keys() const {
  return state_->keys;
}

at::Tensor OffloadedWeightsLoader::at(const std::string& key) const {
  const auto found = state_->in_memory.find(key);
  if (found != state_->in_memory.end()) return found->second;
  const OffloadedWeight* const weight = state_->index.find(key);
  if (weight == nullptr) {
    const auto close = detail::nearest(key, state_->keys);
    throw ConfigError(format(
        "[big_model] no offloaded weight is named \"{}\"{}",
        detail::printable(key),
        close ? format("; did you mean \"{}\"?", *close) : std::string()));
  }
  const at::Tensor tensor = state_->read(key, *weight);
  return tensor.to(state_->device);
}

}  // namespace accelerate
