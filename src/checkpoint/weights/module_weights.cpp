#include <unordered_map>
#include <utility>

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "base/text/text.h"
#include "checkpoint/load/destinations.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "format/weights/merge_weights.h"
#include "format/weights/weights.h"
#include "gate/coded_weights.h"
#include "gate/watched_tensor.h"
#include "params/materialize.h"

namespace accelerate {

namespace {

using detail::Destination;
using detail::format;
using detail::StoredTensors;

void collect(
    const torch::nn::Module& module,
    const std::string& prefix,
    WeightList& list) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) {
      list.emplace_back(prefix + item.key(), item.value());
    }
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) {
      list.emplace_back(prefix + item.key(), item.value());
    }
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), format("{}{}.", prefix, child.key()), list);
  }
}

// Identifies a tensor's elements: equal for tensors that alias each other
// exactly.
struct Place {
  const void* data;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  c10::ScalarType dtype;
  auto operator<=>(const Place&) const = default;
};

}  // namespace

WeightList get_state_dict(const torch::nn::Module& module) {
  WeightList list;
  collect(module, "", list);
  return list;
}

std::vector<std::string> save_model(
    const torch::nn::Module& module,
    const std::filesystem::path& directory,
    const SaveModelOptions& options) {
  return detail::write_module(module, directory, options);
}

std::function<std::string(const std::string& name)> rename_prefixes(
    std::vector<std::pair<std::string, std::string>> prefixes) {
  return [prefixes = std::move(prefixes)](const std::string& name) {
    for (const auto& [before, after] : prefixes) {
      if (name.starts_with(before)) return after + name.substr(before.size());
    }
    return name;
  };
}

void load_model(
    torch::nn::Module& module,
    const std::filesystem::path& path,
    const LoadModelOptions& options) {
  if (options.broadcast_from_rank0.value_or(false)) {
    throw ConfigError(
        "[checkpoint] broadcast_from_rank0 needs other ranks; pass it to "
        "Accelerator::load_model()");
  }
  StoredTensors saved = detail::open_renamed(path, options);
  std::vector<Destination> destinations;
  detail::Aliases aliases;
  std::unordered_map<const void*, std::string> known;
  std::vector<std::string> offloaded;
  for (const auto& [name, tensor] : get_state_dict(module)) {
    const auto [first, is_new] =
        known.emplace(tensor.unsafeGetTensorImpl(), name);
    if (detail::is_offloaded_or_coded(tensor) &&
        !detail::matches_any(options.skip, name))
      offloaded.push_back(name);
    if (is_new) {
      destinations.push_back(
          {name, tensor, detail::Layout::unsharded(tensor.sizes().vec())});
    } else {
      aliases.emplace_back(name, first->second);
    }
  }
  detail::take_other_names(saved, aliases, options.skip);
  const detail::MatchRules rules{
      options.strict, options.skip, options.allow_missing};
  std::vector<std::string> complaints =
      detail::mismatches("model", saved, destinations, aliases, rules);
  for (const std::string& name : offloaded) {
    if (!saved.contains(name)) continue;
    complaints.push_back(format(
        "{} is offloaded or quantised, so it cannot be changed: load before "
        "the model is dispatched, or name it in skip",
        name));
  }
  detail::require_fit(path, complaints);
  for (const Destination& destination : destinations)
    detail::materialize(destination.tensor, at::kCPU);
  detail::read_into(saved, destinations, rules);
}

void merge_fsdp_weights(
    const std::filesystem::path& checkpoint_dir,
    const std::filesystem::path& output_path,
    const MergeWeightsOptions& options) {
  static_cast<void>(detail::merge_weights(
      {.checkpoint_dir = checkpoint_dir,
       .output = output_path,
       .format = options.safe_serialization ? detail::ModelFormat::safetensors
                                            : detail::ModelFormat::torch,
       .removes_checkpoint = options.remove_checkpoint_dir}));
}

std::map<std::string, at::Tensor> load_state_dict(
    const std::filesystem::path& path) {
  const StoredTensors saved = detail::open_weights(path);
  std::map<std::string, at::Tensor> tensors;
  std::vector<Destination> destinations;
  std::map<std::int64_t, at::Tensor> shared;
  for (const auto& [name, stored] : saved) {
    const auto dtype = detail::torch_dtype(stored.dtype);
    if (!dtype) {
      throw CheckpointError(format(
          "[checkpoint] \"{}\" of {} has dtype {}, which LibTorch lacks",
          name,
          path.string(),
          safetensors::name_of(stored.dtype)));
    }
    at::Tensor& tensor = tensors[name];
    const auto found = shared.find(stored.storage);
    if (stored.storage != 0 && found != shared.end()) {
      tensor = found->second;
      continue;
    }
    tensor = at::empty(
        detail::torch_shape(stored.dtype, stored.shape),
        at::TensorOptions().dtype(*dtype));
    if (stored.storage != 0) shared.emplace(stored.storage, tensor);
    destinations.push_back(
        {name, tensor, detail::Layout::unsharded(tensor.sizes().vec())});
  }
  detail::read_into(saved, destinations);
  return tensors;
}

namespace detail {

WeightList with_codes(const WeightList& weights) {
  WeightList list;
  WeightList scales;
  std::string layer;
  const auto add_scales = [&] {
    list.insert(list.end(), scales.begin(), scales.end());
    scales.clear();
  };
  for (const auto& [name, tensor] : weights) {
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    if (std::exchange(layer, prefix) != prefix) add_scales();
    const CodedUnit coded = coded_unit(tensor);
    if (coded.keeper == nullptr) {
      list.emplace_back(name, tensor);
      continue;
    }
    for (const CodeTensor& part : coded.keeper->code_tensors(coded.unit)) {
      (part.name == "weight" ? list : scales)
          .emplace_back(prefix + part.name, part.tensor);
    }
  }
  add_scales();
  return list;
}

std::vector<std::string> write_module(
    const torch::nn::Module& module,
    const std::filesystem::path& directory,
    const SaveModelOptions& options,
    const WriteShardedTensor& write_sharded,
    const std::string& prefix,
    const ShowProgress& show_progress) {
  WriteModelOptions write_options;
  write_options.format = options.safe_serialization ? ModelFormat::safetensors
                                                    : ModelFormat::torch;
  write_options.max_shard_bytes =
      static_cast<std::uint64_t>(options.max_shard_size.bytes());
  if (std::filesystem::exists(directory) &&
      !std::filesystem::is_directory(directory)) {
    throw ConfigError(format(
        "[checkpoint] a model must be saved in a directory, but {} is a file",
        directory.string()));
  }
  std::vector<NamedTensor> tensors;
  std::map<Place, std::int64_t> places;
  for (const auto& [key, tensor] : with_codes(get_state_dict(module))) {
    const std::string name = prefix + key;
    std::optional<TensorToWrite> wanted;
    if (write_sharded) wanted = write_sharded(name, tensor);
    const bool is_sharded = wanted.has_value();
    if (!is_sharded) wanted = to_write(name, tensor);
    std::int64_t storage = 0;
    if (tensor.numel() > 0) {
      const void* const data =
          is_sharded ? tensor.unsafeGetTensorImpl() : memory_of(tensor);
      storage = places
                    .emplace(
                        Place{
                            data,
                            tensor.sizes().vec(),
                            tensor.strides().vec(),
                            tensor.scalar_type()},
                        static_cast<std::int64_t>(places.size()) + 1)
                    .first->second;
    }
    tensors.push_back({name, *std::move(wanted), storage});
  }
  const auto disk = count_writes(
      make_file_system(),
      show_progress ? show_progress(num_bytes_of(tensors)) : nullptr);
  return write_model(*disk, directory, tensors, write_options);
}

StoredTensors open_renamed(
    const std::filesystem::path& path,
    const LoadModelOptions& options) {
  std::vector<std::string> complaints;
  StoredTensors saved = open_weights(path, {}, [&](const std::string& name) {
    const std::string own = options.rename ? options.rename(name) : name;
    if (!options.strict || own.empty() || matches_any(options.skip, own))
      return;
    complaints.push_back(format(
        "{} is a numpy array in the files, which is not read: save "
        "torch.from_numpy(array), or name it in skip",
        name));
  });
  require_fit(path, complaints);
  if (!options.rename) return saved;
  StoredTensors tensors;
  for (const auto& [name, tensor] : saved) {
    const std::string new_name = options.rename(name);
    if (new_name.empty()) continue;
    if (!tensors.emplace(new_name, tensor).second) {
      throw ConfigError(format(
          "[checkpoint] LoadModelOptions::rename must give each tensor its own "
          "name, but gives two the name {}",
          new_name));
    }
  }
  return tensors;
}

void require_fit(
    const std::filesystem::path& path,
    const std::vector<std::string>& complaints) {
  if (complaints.empty()) return;
  throw CheckpointError(format(
      "[checkpoint] {} does not fit the model; nothing was loaded:\n  {}",
      path.string(),
      join(complaints, "\n  ")));
}

}  // namespace detail

}  // namespace accelerate
