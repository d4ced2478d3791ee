#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/load_checkpoint.h>
#include <accelerate/log.h>
#include <accelerate/offload.h>
#include <accelerate/quantized_model.h>

#include "base/text.h"
#include "big_model/model/map_place.h"
#include "big_model/model/module_tensor.h"
#include "big_model/model/offload_keeper.h"
#include "big_model/offload/offload_folder.h"
#include "big_model/offload/weight_dtype.h"
#include "big_model/quantize/quantized_sources.h"
#include "big_model/quantize/skipped_modules.h"
#include "big_model/quantize/weight_keeper.h"
#include "big_model/tiers/dispatch_codes.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "format/tensors/weights.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace {

using detail::format;
using detail::QuantizedSources;

/// A weight that is quantised, under the first of its names.
struct WeightToQuantize {
  std::string module_name;
  at::Tensor parameter;
  c10::Device device = c10::kCPU;
  bool to_disk = false;

  [[nodiscard]] std::string name() const { return module_name + ".weight"; }
};

/// What happens to the weights of a model's layers; made and checked before
/// anything changes.
struct QuantizationPlan {
  std::vector<WeightToQuantize> weights;
  QuantizeWeightOptions options;
};

QuantizeWeightOptions weight_options(const QuantizationConfig& config) {
  QuantizeWeightOptions options;
  options.block_size = config.bnb_4bit_blocksize;
  options.double_quant = config.bnb_4bit_use_double_quant;
  options.type = config.load_in_8bit        ? QuantizationType::int8
      : config.bnb_4bit_quant_type == "nf4" ? QuantizationType::nf4
                                            : QuantizationType::fp4;
  return options;
}

void place(WeightToQuantize& weight, const LoadAndQuantizeOptions& options) {
  if (!weight.parameter.is_meta()) weight.device = weight.parameter.device();
  if (options.device_map.empty()) return;
  const auto place = options.device_map.device_of(weight.name());
  if (!place || place->is_meta()) {
    throw ConfigError(format(
        "[big_model] the device map gives no place to {}; add an entry for it, "
        "or one for \"\"",
        weight.name()));
  }
  weight.to_disk = place->is_disk();
  weight.device = detail::torch_device(*place);
  if (weight.to_disk && options.offload_folder.empty()) {
    throw ConfigError(
        "[big_model] the device map puts modules on the disk, so "
        "offload_folder must say where");
  }
}

QuantizationPlan plan_quantization(
    const torch::nn::Module& model,
    const QuantizationConfig& config,
    const LoadAndQuantizeOptions& options) {
  QuantizationPlan plan;
  plan.options = weight_options(config);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : get_state_dict(model)) {
    tensors.emplace(name, tensor);
    if (options.weights_location.empty() && tensor.is_meta()) {
      throw ConfigError(format(
          "[big_model] {} has no values: give weights_location, where the "
          "weights are",
          name));
    }
  }
  std::set<const void*> known;
  for (const std::string& module_name :
       modules_to_quantize(model, detail::skipped_modules(model, config))) {
    WeightToQuantize weight;
    weight.module_name = module_name;
    weight.parameter = tensors.at(weight.name());
    if (!known.insert(weight.parameter.unsafeGetTensorImpl()).second) continue;
    if (detail::keeper_of(weight.parameter) != nullptr) {
      throw ConfigError(format(
          "[big_model] {} is offloaded, sharded or quantised already: quantise "
          "before the model is dispatched or prepared",
          weight.name()));
    }
    place(weight, options);
    plan.weights.push_back(std::move(weight));
  }
  if (plan.weights.empty()) {
    throw ConfigError(
        "[big_model] the model has no Linear layer to quantise; skip_modules "
        "and keep_in_fp32_modules leave none");
  }
  return plan;
}

// Moves tensors to files of an offload folder. Those of quantised weights are
// then mapped.
class DiskWeights {
 public:
  explicit DiskWeights(const std::filesystem::path& folder) : folder_(folder) {}

  void put(const std::string& name, const at::Tensor& tensor) {
    // Only one writer at a time has the folder.
    if (!writer_) writer_.emplace(detail::make_file_system(), folder_);
    const at::Tensor on_cpu = tensor.detach().to(at::kCPU);
    writer_->put(
        name,
        detail::dtype_name(on_cpu.scalar_type()),
        detail::to_write(name, on_cpu));
  }

  void put(const std::string& module_name, const QuantizedWeight& weight) {
    auto& names = names_[module_name];
    for (const auto& [suffix, tensor] : weight.tensors()) {
      put(format("{}.{}", module_name, suffix), tensor);
      names.push_back(suffix);
    }
  }

  void commit() {
    if (writer_) writer_->commit();
    writer_.reset();
  }

  [[nodiscard]] QuantizedWeight mapped(const std::string& module_name) const {
    OffloadedWeightsSources sources;
    sources.save_folder = folder_;
    const OffloadedWeightsLoader loader(std::move(sources));
    std::map<std::string, at::Tensor> tensors;
    for (const std::string& suffix : names_.at(module_name))
      tensors.emplace(suffix, loader.at(format("{}.{}", module_name, suffix)));
    return QuantizedWeight::from_tensors(tensors);
  }

 private:
  std::filesystem::path folder_;
  std::optional<detail::OffloadFolderWriter> writer_;
  std::map<std::string, std::vector<std::string>> names_;
};

// Loads what is not quantised.
void load_others(
    torch::nn::Module& model,
    const QuantizationConfig& config,
    const LoadAndQuantizeOptions& options,
    const QuantizedSources& sources) {
  LoadCheckpointOptions loading;
  loading.device_map = options.device_map;
  loading.offload_folder = options.offload_folder;
  loading.dtype = config.resolved_torch_dtype();
  loading.offload_state_dict = options.offload_state_dict;
  if (config.keep_in_fp32_modules)
    loading.keep_in_fp32_modules = *config.keep_in_fp32_modules;
  loading.rename = options.rename;
  loading.skip = sources.names();
  load_checkpoint_in_model(model, options.weights_location, loading);
}

// The parameters of "disk" that are not quantised, of a model that has its
// values. What the folder has of another model must not be taken for them.
void put_others(
    const torch::nn::Module& model,
    const QuantizationPlan& plan,
    const LoadAndQuantizeOptions& options,
    DiskWeights& disk) {
  std::set<std::string> known;
  for (const auto& item : model.named_buffers()) known.insert(item.key());
  for (const WeightToQuantize& each : plan.weights) known.insert(each.name());
  for (const auto& [name, tensor] : get_state_dict(model)) {
    if (known.contains(name) || detail::keeper_of(tensor) != nullptr) continue;
    const auto place = options.device_map.device_of(name);
    if (place && place->is_disk()) disk.put(name, tensor);
  }
}

// Codes that are offloaded are fetched for each piece that is written.
detail::TensorToWrite to_write_fetched(
    const std::string& name,
    const at::Tensor& tensor) {
  if (detail::offloaded_unit(tensor).keeper == nullptr)
    return detail::to_write(name, tensor);
  detail::TensorToWrite wanted = detail::described(name, tensor);
  wanted.bytes.copy = [tensor](std::uint64_t begin, std::span<std::byte> out) {
    const at::NoGradGuard no_grad;
    const detail::OffloadedUse use({tensor});
    const at::Tensor on_cpu = tensor.to(at::kCPU).contiguous();
    const std::span<const std::byte> bytes = detail::bytes_of(on_cpu);
    std::copy_n(
        bytes.begin() + static_cast<std::ptrdiff_t>(begin),
        out.size(),
        out.begin());
  };
  return wanted;
}

Dispatch dispatch_weights(
    torch::nn::Module& model,
    const LoadAndQuantizeOptions& options) {
  if (options.device_map.empty()) return {};
  return detail::dispatch_loaded_codes(
      model,
      {.device_map = options.device_map,
       .offload_dir = options.offload_folder,
       .prefetch_memory = options.prefetch_memory});
}

}  // namespace

struct QuantizedModel::State {
  explicit State(detail::ProductKind kind) : keeper(kind) {}

  detail::QuantizedWeightKeeper keeper;
  /// Keeps codes of the keeper, so it ends first.
  Dispatch dispatch;
  /// Handles to the tensors of the module.
  WeightList tensors;
};

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
      "[big_model] \"{}\" is no layer with a quantised weight; module_names() "
      "lists them",
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
  WeightList list;
  // A layer's scales follow its bias.
  WeightList scales;
  std::string layer;
  const auto add_scales = [&] {
    list.insert(list.end(), scales.begin(), scales.end());
    scales.clear();
  };
  for (const auto& [name, tensor] : state_->tensors) {
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    if (std::exchange(layer, prefix) != prefix) add_scales();
    const auto unit = state_->keeper.find(tensor);
    if (!unit) {
      list.emplace_back(name, tensor);
      continue;
    }
    for (const auto& [suffix, part] : state_->keeper.weight(*unit).tensors())
      (suffix == "weight" ? list : scales).emplace_back(prefix + suffix, part);
  }
  add_scales();
  return list;
}

std::vector<std::string> QuantizedModel::save_model(
    const std::filesystem::path& directory,
    const SaveModelOptions& options) const {
  if (std::filesystem::exists(directory) &&
      !std::filesystem::is_directory(directory)) {
    throw ConfigError(format(
        "[big_model] {} is a file; a model is saved in a directory",
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
    tensors.push_back({name, to_write_fetched(name, tensor), place->second});
  }
  const auto disk = detail::make_file_system();
  return detail::write_model(*disk, directory, tensors, writing);
}

QuantizedModel load_and_quantize_model(
    torch::nn::Module& model,
    const QuantizationConfig& config,
    const LoadAndQuantizeOptions& options) {
  const at::NoGradGuard no_grad;
  for (const std::string& warning : config.check())
    Logger().log(LogLevel::warning, "big_model", warning);
  const QuantizationPlan plan = plan_quantization(model, config, options);
  const c10::ScalarType dtype = config.resolved_torch_dtype();
  std::vector<detail::QuantizedSource> wanted;
  for (const WeightToQuantize& each : plan.weights)
    wanted.push_back({each.module_name, each.parameter});
  QuantizedSources sources(
      std::move(wanted), options.weights_location, options.rename);
  auto state = std::make_unique<QuantizedModel::State>(detail::ProductKind{
      .quantizes_inputs = config.llm_int8_quantize_inputs,
      .threshold = config.llm_int8_threshold});
  DiskWeights disk(options.offload_folder);
  std::vector<std::optional<QuantizedWeight>> weights;
  const bool in_place = options.weights_location.empty();
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightToQuantize& each = plan.weights[i];
    QuantizedWeight weight =
        sources.quantized(i, plan.options, dtype).to(each.device);
    if (each.to_disk) {
      disk.put(each.module_name, weight);
      weights.emplace_back(std::nullopt);
    } else if (in_place) {
      // Frees the values at once.
      state->keeper.keep(each.module_name, each.parameter, std::move(weight));
      weights.emplace_back(std::nullopt);
    } else {
      weights.emplace_back(std::move(weight));
    }
  }
  if (in_place) put_others(model, plan, options, disk);
  disk.commit();
  if (!in_place) load_others(model, config, options, sources);
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightToQuantize& each = plan.weights[i];
    if (!weights[i] && !each.to_disk) continue;
    QuantizedWeight weight =
        each.to_disk ? disk.mapped(each.module_name) : *std::move(weights[i]);
    if (!in_place) {
      detail::replace_in_place(
          each.parameter,
          at::empty(
              each.parameter.sizes(),
              at::TensorOptions().dtype(dtype).device(at::kMeta)));
    }
    state->keeper.keep(each.module_name, each.parameter, std::move(weight));
  }
  state->dispatch = dispatch_weights(model, options);
  state->tensors = get_state_dict(model);
  return QuantizedModel(std::move(state));
}

}  // namespace accelerate
