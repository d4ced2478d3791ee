#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>

#include <accelerate/byte_size.h>
#include <accelerate/detail/handles.h>
#include <accelerate/device_map.h>
#include <accelerate/export.h>
#include <accelerate/quantize.h>
#include <accelerate/weights.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

class Dispatch;

/// Accelerate's BnbQuantizationConfig: the same fields, defaults and checks.
struct QuantizationOptions {
  // 8 bits.

  /// Weights in int8.
  bool load_in_8bit = false;
  /// Columns of inputs that reach this value are multiplied in full precision;
  /// 0: none. Lower: more accurate, slower. Only with
  /// `llm_int8_quantize_inputs`; otherwise, all columns are multiplied so.
  double llm_int8_threshold = 6.0;

  // 4 bits.

  /// Weights in 4 bits.
  bool load_in_4bit = false;
  /// "fp4", Accelerate's default, or "nf4", which suits normally distributed
  /// weights.
  std::string bnb_4bit_quant_type = "fp4";
  /// See QuantizeWeightOptions::double_quant.
  bool bnb_4bit_use_double_quant = false;
  /// "fp32", "fp16" or "bf16". Only the default of `torch_dtype`: products are
  /// computed in fp32 on the CPU, in their input's dtype on other devices.
  std::string bnb_4bit_compute_dtype = "fp16";

  // Dtypes, and modules that are left alone.

  /// The dtype to which weights are converted when loaded from files, before
  /// any are quantised: "fp32", "fp16" or "bf16". Empty: fp16 for 8 bits, the
  /// compute dtype for 4 bits.
  std::string torch_dtype = {};
  /// Modules that are not quantised, with everything in them: names of layers
  /// ("lm_head"), dotted names, or ends of those. Unset:
  /// get_keys_to_not_convert().
  std::optional<std::vector<std::string>> skip_modules = std::nullopt;
  /// Modules that are not quantised either, and stay in fp32 if `torch_dtype`
  /// is fp16.
  std::optional<std::vector<std::string>> keep_in_fp32_modules = std::nullopt;

  // Beyond Accelerate.

  /// See QuantizeWeightOptions::block_size.
  std::int64_t bnb_4bit_blocksize = 64;
  /// Compute products with llm_int8_linear() instead of with inputs in full
  /// precision. For comparison; slower.
  bool llm_int8_quantize_inputs = false;

  /// Throws ConfigError for invalid settings; returns warnings.
  ACCELERATE_API std::vector<std::string> check() const;
  /// `torch_dtype` and `bnb_4bit_compute_dtype`, resolved.
  [[nodiscard]] ACCELERATE_API c10::ScalarType resolved_torch_dtype() const;
  /// `bnb_4bit_compute_dtype`, resolved.
  [[nodiscard]] ACCELERATE_API c10::ScalarType compute_dtype() const;
  /// The dtype in which sizes of quantised weights are counted: "int8" or
  /// "int4".
  [[nodiscard]] std::string target_dtype() const {
    return load_in_8bit ? "int8" : "int4";
  }
};

/// Names of modules that should not be quantised: those with tied weights, and
/// the last child of the model, which is usually its head. Empty for a model
/// without ties and without a child named `base_model_prefix`, if that is
/// given: such a model has no head.
[[nodiscard]] ACCELERATE_API std::vector<std::string> get_keys_to_not_convert(
    const torch::nn::Module& model,
    const std::string& base_model_prefix = {});

/// Dotted names of the Linear layers that are quantised if `skip_modules` are
/// left out, in the order of the model.
[[nodiscard]] ACCELERATE_API std::vector<std::string> modules_to_quantize(
    const torch::nn::Module& model,
    const std::vector<std::string>& skip_modules);

/// infer_auto_device_map() with the sizes of quantised weights. `options.dtype`
/// and `options.special_dtypes` are replaced.
[[nodiscard]] ACCELERATE_API DeviceMap infer_quantized_device_map(
    const torch::nn::Module& model,
    const QuantizationOptions& config,
    InferAutoDeviceMapOptions options = {});

/// Chooses a map by a strategy: "auto", "balanced", "balanced_low_0",
/// "sequential".
[[nodiscard]] ACCELERATE_API DeviceMap infer_quantized_device_map(
    const torch::nn::Module& model,
    const QuantizationOptions& config,
    const std::string& strategy,
    InferAutoDeviceMapOptions options = {});

/// Arguments of load_and_quantize_model().
struct LoadAndQuantizeOptions {
  // Weights and places.

  /// The weights; everything that load_model() reads. Needed for a model on the
  /// meta device.
  std::filesystem::path weights_location = {};
  /// Where each module is kept: a map, or a strategy of
  /// infer_quantized_device_map(), such as "auto". Empty: where it is, or on
  /// the CPU if it is on the meta device. With a map, the model is dispatched
  /// as by dispatch_model(), to the map's first accelerator if it has one:
  /// weights on "cpu" and "disk" are fetched, as codes, before their modules
  /// need them. Unlike bitsandbytes, 4 bits work on the CPU and the disk as
  /// well.
  std::variant<DeviceMap, std::string> device_map = {};
  /// The limits of a strategy.
  MaxMemory max_memory = {};
  /// Classes whose modules a strategy keeps on one device.
  std::vector<std::string> no_split_module_classes = {};

  // Dispatching; see DispatchOptions.

  /// Device that computes modules on "cpu" and "disk". Unset: the first
  /// accelerator of the map, else the CPU.
  std::optional<MapDevice> main_device = std::nullopt;
  /// Classes whose modules are fetched at once with everything below them.
  std::vector<std::string> preload_module_classes = {};
  /// Offloads buffers as well.
  bool offload_buffers = false;
  /// Keys of maps among a forward's arguments that are not moved.
  std::vector<std::string> skip_keys = {};

  // Weights on disk, and memory of fetched ones.

  /// Where weights with the place "disk" are written. Codes that the folder
  /// already has are not written again.
  std::filesystem::path offload_folder = {};
  /// See DispatchOptions.
  std::optional<ByteSize> prefetch_memory = std::nullopt;

  // Reading; see LoadCheckpointOptions.

  /// Tensors on the CPU take the checkpoint's dtype, but floating-point ones
  /// get `torch_dtype` regardless. For programs ported from Python.
  bool offload_state_dict = false;
  /// Maps a name in the files to one in the module; see LoadModelOptions.
  std::function<std::string(const std::string& name)> rename = nullptr;
};

/// A model with quantised weights. The module stays as it is: its Linear layers
/// and their parameters keep their types, shapes and dtypes, but the weights
/// have no memory of their own, and products with them use the codes. Any other
/// operator that reads such a weight gets its values, dequantised for that
/// operator; one that would change it is rejected. The parameters are frozen;
/// gradients reach what is before and after them. Keep this object as long as
/// the module is used.
class ACCELERATE_API QuantizedModel {
 public:
  QuantizedModel(QuantizedModel&&) noexcept;
  QuantizedModel& operator=(QuantizedModel&&) noexcept;
  ~QuantizedModel();

  /// Dotted names of the layers with quantised weights.
  [[nodiscard]] std::vector<std::string> module_names() const;
  /// The weight of such a layer. One that is offloaded is fetched when it is
  /// used; its tensors have memory only for LibTorch's operators. Throws
  /// ConfigError for another name.
  [[nodiscard]] const QuantizedWeight& weight(
      const std::string& module_name) const;
  /// The dispatch of the device map: where forwards begin, and what was
  /// fetched; empty without a map. Its call() runs the module with its
  /// arguments moved to where forwards begin.
  [[nodiscard]] Dispatch& dispatch() const;
  /// Bytes of all tensors of the model as they are now, offloaded or not.
  [[nodiscard]] std::int64_t get_memory_footprint() const;

  /// The model's tensors as bitsandbytes saves them: quantised weights as
  /// QuantizedWeight::tensors(), the others as they are.
  [[nodiscard]] WeightList state_dict() const;
  /// Like accelerate::save_model(), in bitsandbytes' layout.
  /// load_and_quantize_model() reads it, and so do Python programs.
  std::vector<std::string> save_model(
      const std::filesystem::path& directory,
      const SaveModelOptions& options = {}) const;

 private:
  struct State;
  friend ACCELERATE_API QuantizedModel load_and_quantize_model(
      torch::nn::Module& model,
      const QuantizationOptions& config,
      const LoadAndQuantizeOptions& options);
  explicit QuantizedModel(std::unique_ptr<State> state);

  detail::MovedCheck<detail::OwnedPtr<State>, "QuantizedModel"> state_;
};

/// Quantises the weights of the Linear layers of a model, one after another as
/// they are read: memory use is that of the result plus one weight. Weights
/// that files hold in bitsandbytes' layout are used as they are. A model that
/// has its values is quantised in place if `weights_location` is empty. Throws
/// ConfigError for what QuantizationOptions::check() rejects, a model without
/// values and without `weights_location`, and values that are not finite;
/// CheckpointError naming everything that does not fit. The model is then
/// unchanged.
[[nodiscard]] ACCELERATE_API QuantizedModel load_and_quantize_model(
    torch::nn::Module& model,
    const QuantizationOptions& config,
    const LoadAndQuantizeOptions& options = {});

}  // namespace accelerate
