#include <map>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accelerate/error.h>
#include <accelerate/load_checkpoint.h>
#include <accelerate/log.h>
#include <accelerate/offload.h>
#include <accelerate/quantized_model.h>

#include "base/text/text.h"
#include "big_model/model/map_place.h"
#include "big_model/model/module_tensor.h"
#include "big_model/offload/offload_folder.h"
#include "big_model/offload/weight_dtype.h"
#include "big_model/quantize/quantized_model_state.h"
#include "big_model/quantize/quantized_sources.h"
#include "big_model/quantize/skipped_modules.h"
#include "big_model/tiers/dispatch/dispatch_codes.h"
#include "big_model/tiers/dispatch/dispatcher.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace {

using detail::format;
using detail::QuantizedSources;

/// A weight to be quantised, under its first name.
struct WeightToQuantize {
  std::string module_name;
  at::Tensor parameter;
  c10::Device device = c10::kCPU;
  bool to_disk = false;

  [[nodiscard]] std::string name() const { return module_name + ".weight"; }
};

/// What happens to the weights of a model's layers; made and checked before
/// anything is changed.
struct QuantizationPlan {
  std::vector<WeightToQuantize> weights;
  QuantizeWeightOptions options;
};

QuantizeWeightOptions weight_options(const QuantizationOptions& config) {
  QuantizeWeightOptions options;
  options.block_size = config.bnb_4bit_blocksize;
  options.double_quant = config.bnb_4bit_use_double_quant;
  options.type = config.load_in_8bit        ? QuantizationType::int8
      : config.bnb_4bit_quant_type == "nf4" ? QuantizationType::nf4
                                            : QuantizationType::fp4;
  return options;
}

const DeviceMap& map_of(const LoadAndQuantizeOptions& options) {
  return std::get<DeviceMap>(options.device_map);
}

// The options with a device map in place of a strategy.
LoadAndQuantizeOptions resolved(
    const torch::nn::Module& model,
    const QuantizationOptions& config,
    LoadAndQuantizeOptions options) {
  if (const auto* const strategy =
          std::get_if<std::string>(&options.device_map)) {
    options.device_map = infer_quantized_device_map(
        model,
        config,
        *strategy,
        {.max_memory = options.max_memory,
         .no_split_module_classes = options.no_split_module_classes,
         .offload_buffers = options.offload_buffers});
  }
  // Reject a missing accelerator before anything is changed.
  if (!map_of(options).empty())
    static_cast<void>(
        detail::main_device_of(map_of(options), options.main_device));
  return options;
}

void place(WeightToQuantize& weight, const LoadAndQuantizeOptions& options) {
  if (!weight.parameter.is_meta()) weight.device = weight.parameter.device();
  if (map_of(options).empty()) return;
  const auto place = map_of(options).device_of(weight.name());
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
    const QuantizationOptions& config,
    const LoadAndQuantizeOptions& options) {
  QuantizationPlan plan;
  plan.options = weight_options(config);
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, tensor] : get_state_dict(model)) {
    tensors.emplace(name, tensor);
    if (options.weights_location.empty() && tensor.is_meta()) {
      throw ConfigError(format(
          "[big_model] {} has no values: set weights_location to the place of "
          "the weights",
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
          "[big_model] {} is already offloaded, sharded or quantised: quantise "
          "before the model is dispatched or prepared",
          weight.name()));
    }
    place(weight, options);
    plan.weights.push_back(std::move(weight));
  }
  if (plan.weights.empty()) {
    throw ConfigError(
        "[big_model] the model must have a Linear layer that skip_modules and "
        "keep_in_fp32_modules do not exclude, but has none");
  }
  return plan;
}

// Moves tensors to files of an offload folder. The files of quantised weights
// are then mapped.
class DiskWeights {
 public:
  explicit DiskWeights(const std::filesystem::path& folder) : folder_(folder) {}

  void put(const std::string& name, const at::Tensor& tensor) {
    // Only one writer at a time may have the folder.
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

// Loads the weights that are not quantised.
void load_others(
    torch::nn::Module& model,
    const QuantizationOptions& config,
    const LoadAndQuantizeOptions& options,
    const QuantizedSources& sources) {
  LoadCheckpointOptions loading;
  loading.device_map = map_of(options);
  loading.offload_folder = options.offload_folder;
  loading.dtype = config.resolved_torch_dtype();
  loading.offload_state_dict = options.offload_state_dict;
  loading.offload_buffers = options.offload_buffers;
  if (config.keep_in_fp32_modules)
    loading.keep_in_fp32_modules = *config.keep_in_fp32_modules;
  loading.rename = options.rename;
  loading.skip = sources.names();
  load_checkpoint_in_model(model, options.weights_location, loading);
}

// Writes the parameters on "disk" that are not quantised, for a model that has
// its values. Files of another model in the folder must not be mistaken for
// them.
void put_others(
    const torch::nn::Module& model,
    const QuantizationPlan& plan,
    const LoadAndQuantizeOptions& options,
    DiskWeights& disk) {
  std::set<std::string> known;
  if (!options.offload_buffers)
    for (const auto& item : model.named_buffers()) known.insert(item.key());
  for (const WeightToQuantize& each : plan.weights) known.insert(each.name());
  for (const auto& [name, tensor] : get_state_dict(model)) {
    if (known.contains(name) || detail::keeper_of(tensor) != nullptr) continue;
    const auto place = map_of(options).device_of(name);
    if (place && place->is_disk()) disk.put(name, tensor);
  }
}

// The weights on "disk", as pages of their files; nothing for other weights.
std::vector<std::optional<QuantizedWeight>> mapped_weights(
    const QuantizationPlan& plan,
    const DiskWeights& disk) {
  std::vector<std::optional<QuantizedWeight>> weights;
  for (const WeightToQuantize& each : plan.weights) {
    weights.emplace_back();
    if (each.to_disk) weights.back() = disk.mapped(each.module_name);
  }
  return weights;
}

// The values of a model that has them are freed one weight at a time, once
// everything that can fail is done: weights were checked, files are written.
void quantize_in_place(
    const torch::nn::Module& model,
    const QuantizationPlan& plan,
    const QuantizationOptions& config,
    const LoadAndQuantizeOptions& options,
    const QuantizedSources& sources,
    detail::QuantizedWeightKeeper& keeper) {
  const c10::ScalarType dtype = config.resolved_torch_dtype();
  DiskWeights disk(options.offload_folder);
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    if (plan.weights[i].to_disk)
      disk.put(
          plan.weights[i].module_name,
          sources.quantized(i, plan.options, dtype));
  }
  put_others(model, plan, options, disk);
  disk.commit();
  auto on_disk = mapped_weights(plan, disk);
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightToQuantize& each = plan.weights[i];
    keeper.keep(
        each.module_name,
        each.parameter,
        on_disk[i] ? *std::move(on_disk[i])
                   : sources.quantized(i, plan.options, dtype).to(each.device));
  }
}

// The model is changed only once everything has been read and written.
void quantize_from_files(
    torch::nn::Module& model,
    const QuantizationPlan& plan,
    const QuantizationOptions& config,
    const LoadAndQuantizeOptions& options,
    const QuantizedSources& sources,
    detail::QuantizedWeightKeeper& keeper) {
  const c10::ScalarType dtype = config.resolved_torch_dtype();
  DiskWeights disk(options.offload_folder);
  std::vector<std::optional<QuantizedWeight>> weights(plan.weights.size());
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightToQuantize& each = plan.weights[i];
    QuantizedWeight weight =
        sources.quantized(i, plan.options, dtype).to(each.device);
    if (each.to_disk) {
      disk.put(each.module_name, weight);
    } else {
      weights[i] = std::move(weight);
    }
  }
  disk.commit();
  auto on_disk = mapped_weights(plan, disk);
  load_others(model, config, options, sources);
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const WeightToQuantize& each = plan.weights[i];
    detail::replace_in_place(
        each.parameter,
        at::empty(
            each.parameter.sizes(),
            at::TensorOptions().dtype(dtype).device(at::kMeta)));
    keeper.keep(
        each.module_name,
        each.parameter,
        *std::move(each.to_disk ? on_disk[i] : weights[i]));
  }
}

Dispatch dispatch_weights(
    torch::nn::Module& model,
    const LoadAndQuantizeOptions& options) {
  if (map_of(options).empty()) return {};
  return detail::dispatch_loaded_codes(
      model,
      {.device_map = map_of(options),
       .main_device = options.main_device,
       .offload_dir = options.offload_folder,
       .offload_buffers = options.offload_buffers,
       .skip_keys = options.skip_keys,
       .preload_module_classes = options.preload_module_classes,
       .prefetch_memory = options.prefetch_memory});
}

}  // namespace

QuantizedModel load_and_quantize_model(
    torch::nn::Module& model,
    const QuantizationOptions& config,
    const LoadAndQuantizeOptions& given) {
  const at::NoGradGuard no_grad;
  for (const std::string& warning : config.check())
    Logger().log(LogLevel::warning, "big_model", warning);
  const LoadAndQuantizeOptions options = resolved(model, config, given);
  const QuantizationPlan plan = plan_quantization(model, config, options);
  std::vector<detail::QuantizedSource> wanted;
  for (const WeightToQuantize& each : plan.weights)
    wanted.push_back({each.module_name, each.parameter});
  const QuantizedSources sources(
      std::move(wanted), options.weights_location, options.rename);
  auto state = std::make_unique<QuantizedModel::State>(detail::ProductKind{
      .quantizes_inputs = config.llm_int8_quantize_inputs,
      .threshold = config.llm_int8_threshold});
  if (options.weights_location.empty()) {
    quantize_in_place(model, plan, config, options, sources, state->keeper);
  } else {
    quantize_from_files(model, plan, config, options, sources, state->keeper);
  }
  state->dispatch = dispatch_weights(model, options);
  state->tensors = get_state_dict(model);
  return QuantizedModel(std::move(state));
}

}  // namespace accelerate
