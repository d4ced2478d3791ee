#include <accelerate/quantized_model.h>

#include <map>
#include <set>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "big_model/quantize/quantized_model_state.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "format/weights/weights.h"

namespace accelerate {

using detail::format;

QuantizedModel::QuantizedModel(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
QuantizedModel::QuantizedModel(QuantizedModel&&) noexcept = default;
QuantizedModel& QuantizedModel::operator=(QuantizedModel&&) noexcept = default;
QuantizedModel::~QuantizedModel() = default;

std::vector<std::string> QuantizedModel::module_names() const {
  std::vector<std::string> names;
  for (std::size_t unit = 0; unit < state_->keeper.size(); ++unit)
    names.push_back(state_->keeper.name(unit));
  return names;
}

const QuantizedWeight& QuantizedModel::weight(
    const std::string& module_name) const {
  for (std::size_t unit = 0; unit < state_->keeper.size(); ++unit) {
    if (state_->keeper.name(unit) == module_name)
      return state_->keeper.weight(unit);
  }
  throw ConfigError(format(
      "[big_model] \"{}\" must be a layer with a quantised weight; "
      "module_names() lists them",
      module_name));
}

Dispatch& QuantizedModel::dispatch() const { return state_->dispatch; }

std::int64_t QuantizedModel::get_memory_footprint() const {
  std::int64_t bytes = 0;
  std::set<const void*> known;
  for (const auto& [name, tensor] : state_->tensors) {
    if (!known.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const auto unit = state_->keeper.find(tensor);
    bytes += unit ? state_->keeper.weight(*unit).num_bytes()
                  : static_cast<std::int64_t>(tensor.nbytes());
  }
  return bytes;
}

WeightList QuantizedModel::state_dict() const {
  return detail::with_codes(state_->tensors);
}

std::vector<std::string> QuantizedModel::save_model(
    const std::filesystem::path& directory,
    const SaveModelOptions& options) const {
  if (std::filesystem::exists(directory) &&
      !std::filesystem::is_directory(directory)) {
    throw ConfigError(format(
        "[big_model] a model must be saved in a directory, but {} is a file",
        directory.string()));
  }
  detail::WriteModelOptions writing;
  writing.format = options.safe_serialization ? detail::ModelFormat::safetensors
                                              : detail::ModelFormat::torch;
  writing.max_shard_bytes =
      static_cast<std::uint64_t>(options.max_shard_size.bytes());
  std::vector<detail::NamedTensor> tensors;
  std::map<const void*, std::int64_t> storages;
  for (const auto& [name, tensor] : state_dict()) {
    const auto [place, is_new] = storages.emplace(
        tensor.unsafeGetTensorImpl(),
        static_cast<std::int64_t>(storages.size()) + 1);
    tensors.push_back({name, detail::to_write(name, tensor), place->second});
  }
  const auto disk = detail::make_file_system();
  return detail::write_model(*disk, directory, tensors, writing);
}

}  // namespace accelerate
