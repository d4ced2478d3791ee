#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <accelerate/byte_size.h>
#include <accelerate/detail/handles.h>
#include <accelerate/device_map.h>
#include <accelerate/export.h>
#include <accelerate/load_checkpoint.h>
#include <accelerate/model_device_map.h>
#include <accelerate/nested.h>
#include <accelerate/offload.h>
#include <accelerate/weights.h>

/// Models whose weights are spread over devices, host memory and the disk.
///
/// Modules are not changed. An offloaded weight is fetched before an operator
/// uses it, while a background thread prefetches the weights that follow, in
/// the order that earlier forwards have shown; what is not needed next leaves
/// memory at once. Backward passes fetch weights again, so frozen weights can
/// be offloaded while others are trained.
namespace accelerate {

/// Infers a map by a named strategy: "auto" or "balanced" spread the model
/// evenly over the accelerators, "balanced_low_0" puts as little as possible on
/// the first one, "sequential" fills one after another. Throws ConfigError for
/// other names.
[[nodiscard]] ACCELERATE_API DeviceMap infer_auto_device_map(
    const torch::nn::Module& model,
    const std::string& strategy,
    InferAutoDeviceMapOptions options = {});

/// What has been moved so far for a dispatched model.
struct DispatchStats {
  std::uint64_t bytes = 0;       ///< fetched weights now in memory
  std::uint64_t peak_bytes = 0;  ///< the most at any time
  /// Bytes fetched in total, from memory and from disk.
  std::uint64_t fetched_bytes = 0;
  /// The part of fetched_bytes that is mapped from files and was not copied.
  std::uint64_t mapped_bytes = 0;
  /// Number of weights fetched.
  std::int64_t num_fetches = 0;
  /// How often an operator had to wait for a weight, and for how long.
  std::int64_t num_waits = 0;
  /// Total time of those waits.
  double wait_seconds = 0;
  /// How often the weight used was not the one expected.
  std::int64_t num_surprises = 0;
};

/// Arguments of dispatch_model().
struct DispatchOptions {
  // Places, and where modules are computed.

  /// Where each module is kept; names every tensor of the model.
  DeviceMap device_map = {};
  /// Device that computes modules on "cpu" and "disk". Unset: the first
  /// accelerator of the map, else the CPU.
  std::optional<MapDevice> main_device = std::nullopt;

  // Values, and the folder of those on disk.

  /// Values of weights; those missing here are the model's own. They are read
  /// in place, and never written to.
  WeightList state_dict = {};
  /// Folder of the weights on "disk" (offload.h). If it has no index.json, they
  /// are written there now.
  std::filesystem::path offload_dir = {};
  /// If the folder's checksums do not match this model's weights (it belongs to
  /// another model, or this one has been trained since), throw an error. If
  /// false, warn and use the folder's values.
  bool strict_offload_dir = false;
  /// Locations of weights on "disk" outside the folder.
  OffloadIndex offload_index = {};

  // What moves, and when.

  /// Offloads buffers as well, for models whose buffers are large. Otherwise
  /// they stay on the device that uses them.
  bool offload_buffers = false;
  /// Keys of maps among a forward's arguments that are not moved to the main
  /// device.
  std::vector<std::string> skip_keys = {};
  /// Classes whose modules are fetched at once with everything below them, such
  /// as one that reads its children's weights itself.
  std::vector<std::string> preload_module_classes = {};
  /// Offloads weights on "cpu" even if that is the map's only place and the CPU
  /// computes, to try offloading without an accelerator. Without effect on
  /// other maps.
  bool force_hooks = false;

  // Memory.

  /// Maximum memory for fetched weights, including those in use, unless a
  /// single module needs more. More lets weights be fetched further ahead:
  /// raise it if Dispatch::stats() shows waits. Unset: twice the largest module
  /// (or class of preload_module_classes).
  std::optional<ByteSize> prefetch_memory = std::nullopt;
};

/// Keeps a module's weights where they belong for as long as it lives. Once it
/// is destroyed, offloaded weights can no longer be read. Movable. Only one
/// thread at a time can run forwards of a model.
class ACCELERATE_API Dispatch {
 public:
  Dispatch();
  Dispatch(Dispatch&&) noexcept;
  Dispatch& operator=(Dispatch&&) noexcept;
  ~Dispatch();

  /// The map passed in; Accelerate's `hf_device_map`.
  [[nodiscard]] const DeviceMap& device_map() const;
  /// Where modules on "cpu" and "disk" are computed, and where forwards begin.
  [[nodiscard]] c10::Device main_device() const;
  /// What has been moved since the model was dispatched.
  [[nodiscard]] DispatchStats stats() const;
  /// Calls the module's forward: arguments are moved to the main device, except
  /// DispatchOptions::skip_keys, and results to where the first tensor among
  /// the arguments was. A module that is called directly has its weights as
  /// well, but gets its arguments as they are.
  template <class Module, class... Args>
  auto call(Module& module, Args&&... args) const;
  /// Frees all fetched weights; forwards fetch them again.
  void offload();
  /// Ends offloading: every weight is fetched to the device that uses it and
  /// stays there. Throws what reading throws.
  void release();

  struct State;
  explicit Dispatch(std::unique_ptr<State> state);

 private:
  template <class Holder>
  friend class DispatchedModel;
  /// Throws ConfigError if it was moved from.
  void require_present() const { static_cast<void>(*state_); }
  [[nodiscard]] const std::vector<std::string>& skip_keys() const;
  /// Called with the results of a forward.
  static void leave(const at::Tensor& result);

  detail::MovedCheck<detail::OwnedPtr<State>, "Dispatch"> state_;
};

template <class Module, class... Args>
auto Dispatch::call(Module& module, Args&&... args) const {
  std::optional<c10::Device> origin;
  const auto moved = [&]<class T>(T&& value) {
    if constexpr (NestedTensors<std::decay_t<T>>) {
      std::decay_t<T> copy(std::forward<T>(value));
      visit_tensors(copy, [&](at::Tensor& tensor) {
        if (!origin && tensor.defined()) origin = tensor.device();
      });
      return send_to_device(
          std::move(copy),
          main_device(),
          SendToDeviceOptions{.skip_keys = skip_keys()});
    } else {
      return std::forward<T>(value);
    }
  };
  auto result = module.forward(moved(std::forward<Args>(args))...);
  if constexpr (NestedTensors<decltype(result)>) {
    visit_tensors(result, [](at::Tensor& each) { leave(each); });
    if (origin) return send_to_device(std::move(result), *origin);
  }
  return result;
}

/// A module and its Dispatch. Arguments of a call are moved to the main device,
/// its results to where the first tensor among the arguments was.
///
/// `Holder`: a module holder (Net) or a shared_ptr to a module.
template <class Holder>
class DispatchedModel {
 public:
  DispatchedModel(Holder module, Dispatch dispatch)
      : module_(std::move(module)), dispatch_(std::move(dispatch)) {}

  /// Calls the module's forward; see Dispatch::call(). Throws ConfigError if
  /// the model was moved from.
  template <class... Args>
  auto operator()(Args&&... args) {
    dispatch_.require_present();
    return dispatch_.call(*module_, std::forward<Args>(args)...);
  }

  /// The module itself. Calling its forward directly leaves arguments and
  /// results where they are.
  [[nodiscard]] Holder& module() { return module_; }
  auto operator->() {
    dispatch_.require_present();
    return &*module_;
  }
  /// What keeps the weights in place; owned by this object.
  [[nodiscard]] Dispatch& dispatch() { return dispatch_; }
  /// The map passed in; Accelerate's `hf_device_map`.
  [[nodiscard]] const DeviceMap& device_map() const {
    return dispatch_.device_map();
  }
  /// What has been moved since the model was dispatched.
  [[nodiscard]] DispatchStats stats() const { return dispatch_.stats(); }

 private:
  Holder module_;
  Dispatch dispatch_;
};

/// Places a model's modules as a map says. If its only place is a device, the
/// model is moved there. Throws ConfigError for a map without a place for a
/// tensor, a missing accelerator, and weights on "disk" without values or a
/// folder; the model is then unchanged.
[[nodiscard]] ACCELERATE_API Dispatch
dispatch_module(torch::nn::Module& module, const DispatchOptions& options);

/// dispatch_module() for a module holder.
template <class Holder>
[[nodiscard]] DispatchedModel<Holder> dispatch_model(
    Holder model,
    const DispatchOptions& options) {
  Dispatch dispatch = dispatch_module(*model, options);
  return {std::move(model), std::move(dispatch)};
}

/// Arguments of cpu_offload() and disk_offload(), as in DispatchOptions.
struct OffloadOptions {
  /// Device that computes. Unset: that of the model's first parameter, or the
  /// CPU if that parameter has no memory.
  std::optional<c10::Device> execution_device = std::nullopt;
  /// Offloads buffers as well. Otherwise they stay on the device that uses
  /// them.
  bool offload_buffers = false;
  /// Values of weights; those missing here are the model's own.
  WeightList state_dict = {};
  /// If the folder's checksums do not match this model's weights, throw an
  /// error instead of a warning. Used by disk_offload() only.
  bool strict_offload_dir = false;
  /// Classes whose modules are fetched at once with everything below them.
  std::vector<std::string> preload_module_classes = {};
  /// Maximum memory for fetched weights; see DispatchOptions. Unset: twice the
  /// largest module.
  std::optional<ByteSize> prefetch_memory = std::nullopt;
};

/// Keeps all weights in host memory, and those in use on the execution device.
[[nodiscard]] ACCELERATE_API Dispatch
cpu_offload_module(torch::nn::Module& module, const OffloadOptions& options);

/// Keeps all weights on disk, in a folder (offload.h) that is written unless it
/// already has an index.json.
[[nodiscard]] ACCELERATE_API Dispatch disk_offload_module(
    torch::nn::Module& module,
    const std::filesystem::path& offload_dir,
    const OffloadOptions& options);

/// cpu_offload_module() for a module holder.
template <class Holder>
[[nodiscard]] DispatchedModel<Holder> cpu_offload(
    Holder model,
    const OffloadOptions& options = {}) {
  Dispatch dispatch = cpu_offload_module(*model, options);
  return {std::move(model), std::move(dispatch)};
}

/// disk_offload_module() for a module holder.
template <class Holder>
[[nodiscard]] DispatchedModel<Holder> disk_offload(
    Holder model,
    const std::filesystem::path& offload_dir,
    const OffloadOptions& options = {}) {
  Dispatch dispatch = disk_offload_module(*model, offload_dir, options);
  return {std::move(model), std::move(dispatch)};
}

/// Moves one of several models of a pipeline back to host memory by hand. A
/// handle: copies refer to the same hook. Does nothing once the model is gone.
class ACCELERATE_API UserCpuOffloadHook {
 public:
  UserCpuOffloadHook() = default;
  /// Frees the model's memory on its device.
  void offload() const;
  /// Ends offloading; the model stays on its device.
  void remove() const;

  struct Link;
  explicit UserCpuOffloadHook(std::shared_ptr<Link> link);

 private:
  std::shared_ptr<Link> link_;
};

/// Keeps a model in host memory until its first forward, which moves all of it
/// to the device, where it stays until the hook's `offload()`. With
/// `prev_module_hook`, that hook's model leaves its device first, so that the
/// models of a pipeline take turns.
[[nodiscard]] ACCELERATE_API std::pair<Dispatch, UserCpuOffloadHook>
cpu_offload_module_with_hook(
    torch::nn::Module& module,
    std::optional<c10::Device> execution_device,
    const UserCpuOffloadHook& prev_module_hook);

/// Offloads a module holder as cpu_offload_module_with_hook() does.
template <class Holder>
[[nodiscard]] std::pair<DispatchedModel<Holder>, UserCpuOffloadHook>
cpu_offload_with_hook(
    Holder model,
    std::optional<c10::Device> execution_device = std::nullopt,
    const UserCpuOffloadHook& prev_module_hook = {}) {
  auto [dispatch, hook] =
      cpu_offload_module_with_hook(*model, execution_device, prev_module_hook);
  return {
      DispatchedModel<Holder>(std::move(model), std::move(dispatch)),
      std::move(hook)};
}

/// Arguments of load_checkpoint_and_dispatch(): those of
/// load_checkpoint_in_model(), infer_auto_device_map() and dispatch_model().
struct LoadAndDispatchOptions {
  // Places.

  /// A map, or a strategy of infer_auto_device_map(): "auto", "balanced",
  /// "balanced_low_0", "sequential". Empty: the weights are loaded, and nothing
  /// is dispatched.
  std::variant<DeviceMap, std::string> device_map = {};
  /// The limits of a strategy.
  MaxMemory max_memory = {};
  /// Classes whose modules a strategy keeps on one device.
  std::vector<std::string> no_split_module_classes = {};

  // Weights on disk.

  /// Folder to which weights on "disk" are copied. Empty: they are read from
  /// the checkpoint's own files, which broadcast_from_rank0 does not allow.
  std::filesystem::path offload_folder = {};
  /// If the folder has other values for weights of the checkpoint, throw an
  /// error. If false, replace them.
  bool strict_offload_folder = false;
  /// Buffers with the place "disk" or "cpu" are offloaded as well.
  bool offload_buffers = false;

  // Reading: dtypes, memory, names.

  /// See LoadCheckpointOptions.
  std::optional<c10::ScalarType> dtype = std::nullopt;
  /// Names of modules whose tensors stay float32 if `dtype` is float16.
  std::vector<std::string> keep_in_fp32_modules = {};
  /// See LoadCheckpointOptions. Unset: true for a map that uses the disk, as in
  /// Accelerate.
  std::optional<bool> offload_state_dict = std::nullopt;
  /// Memory-map tensors that stay on the CPU; see LoadCheckpointOptions.
  bool map_weights = true;
  /// Shows a progress bar of the bytes read. Unset: none.
  std::optional<ProgressOptions> progress = std::nullopt;
  /// Names of tensors that are left unchanged; patterns with * and ?.
  std::vector<std::string> skip = {};
  /// Names of tensors that the checkpoint may lack; patterns with * and ?.
  std::vector<std::string> allow_missing = {};
  /// Maps a name in the files to one in the module; see LoadModelOptions.
  std::function<std::string(const std::string& name)> rename = nullptr;

  // Forwards.

  /// Keys of maps among a forward's arguments that are not moved to the main
  /// device.
  std::vector<std::string> skip_keys = {};
  /// Classes whose modules are fetched at once with everything below them.
  std::vector<std::string> preload_module_classes = {};
  /// See DispatchOptions.
  bool force_hooks = false;

  // How strictly the checkpoint must match, and which ranks read.

  /// Every tensor of the module must be in the checkpoint, and vice versa.
  bool strict = false;
  /// See LoadCheckpointOptions; false is rejected.
  bool full_state_dict = true;
  /// Only rank 0 of `group` reads the checkpoint, and sends the others its
  /// tensors.
  bool broadcast_from_rank0 = false;
  /// The ranks of broadcast_from_rank0, which needs it.
  std::optional<Group> group = std::nullopt;

  // The main device, and memory of fetched weights.

  /// Device that computes modules on "cpu" and "disk". Unset: the first
  /// accelerator of the map, else the CPU.
  std::optional<MapDevice> main_device = std::nullopt;
  /// Maximum memory for fetched weights; see DispatchOptions.
  std::optional<ByteSize> prefetch_memory = std::nullopt;
};

/// load_checkpoint_and_dispatch() for a module that the caller owns.
[[nodiscard]] ACCELERATE_API Dispatch load_checkpoint_and_dispatch_module(
    torch::nn::Module& module,
    const std::filesystem::path& checkpoint,
    const LoadAndDispatchOptions& options);

/// Reads a checkpoint into a model, usually one on the meta device, and
/// dispatches it: peak memory is what stays plus the largest tensors in
/// transit. Throws like load_checkpoint_in_model() and dispatch_model().
///
/// auto model = [&] { accelerate::EmptyWeightsScope meta; return Net(); }();
///     auto big = accelerate::load_checkpoint_and_dispatch(
///         model, "weights", {.device_map = "auto"});
///     at::Tensor logits = big(tokens);
template <class Holder>
[[nodiscard]] DispatchedModel<Holder> load_checkpoint_and_dispatch(
    Holder model,
    const std::filesystem::path& checkpoint,
    const LoadAndDispatchOptions& options = {}) {
  Dispatch dispatch =
      load_checkpoint_and_dispatch_module(*model, checkpoint, options);
  return {std::move(model), std::move(dispatch)};
}

}  // namespace accelerate
