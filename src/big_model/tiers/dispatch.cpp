#include <accelerate/big_model.h>

#include <algorithm>
#include <exception>
#include <unordered_map>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/log.h>

#include "base/text.h"
#include "big_model/model/map_place.h"
#include "big_model/model/module_tensor.h"
#include "big_model/offload/offload_folder.h"
#include "big_model/tiers/dispatch_codes.h"
#include "big_model/tiers/dispatch_plan.h"
#include "big_model/tiers/folder_contents.h"
#include "big_model/tiers/input_mover.h"
#include "big_model/tiers/tier_keeper.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/weights/module_weights.h"
#include "gate/watched_tensor.h"

namespace accelerate {

namespace fs = std::filesystem;
using detail::format;

struct Dispatch::State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { unwatch(); }

  void unwatch() {
    for (const at::Tensor& tensor : watched)
      detail::unwatch_tensor(tensor, this);
    watched.clear();
  }

  DeviceMap map;
  c10::Device main_device = c10::kCPU;
  std::vector<at::Tensor> watched;
  /// Null if nothing is offloaded.
  std::shared_ptr<detail::TierKeeper> keeper;
};

struct UserCpuOffloadHook::Link {
  std::weak_ptr<detail::TierKeeper> keeper;
};

namespace {

/// Dispatches one module: first finds all values, then moves tensors.
class Dispatcher {
 public:
  Dispatcher(
      torch::nn::Module& module,
      const detail::DispatchRequest& request,
      const WeightList& state_dict)
      : module_(module),
        request_(request),
        plan_(detail::plan_dispatch(module, request)) {
    for (const auto& [name, value] : state_dict) values_.emplace(name, value);
    require_free();
  }

  void add_stored(const detail::StoredTensors& tensors) {
    stored_.add(tensors);
  }

  /// The same for weights that are held as codes, too: these are the ones in
  /// the files. Otherwise their files are compared with them and written anew.
  void add_stored_codes(const detail::StoredTensors& tensors) {
    add_stored(tensors);
    has_stored_codes_ = true;
  }

  /// Finds the values of weights that are on disk, and writes those to the
  /// folder that it lacks.
  void use_disk(const fs::path& folder, const OffloadIndex& index) {
    if (std::find(plan_.is_on_disk.begin(), plan_.is_on_disk.end(), true) ==
        plan_.is_on_disk.end()) {
      return;
    }
    if (!folder.empty() && fs::exists(folder / detail::kOffloadIndexName)) {
      stored_.add(detail::stored_in_offload_folder(folder));
      if (!has_stored_codes_) warn_of_others(folder);
    }
    stored_.add(index, folder);
    WeightList to_write = codes_to_write();
    std::vector<std::string> lost;
    for (std::size_t i = 0; i < plan_.kept.tensors.size(); ++i) {
      if (plan_.is_code[i]) continue;
      if (!plan_.is_on_disk[i] || stored_.find(plan_.kept_names[i])) continue;
      const at::Tensor value =
          value_of(plan_.kept_names[i], plan_.kept.tensors[i].tensor);
      const std::string& name = plan_.kept.tensors[i].name;
      if (value.defined()) {
        to_write.emplace_back(name, value);
      } else {
        lost.push_back(name);
      }
    }
    require_values(lost);
    if (to_write.empty()) return;
    if (folder.empty()) {
      std::vector<std::string> names;
      for (const auto& [name, value] : to_write) names.push_back(name);
      throw ConfigError(format(
          "[big_model] the device map puts {} on the disk: give a folder for "
          "them (offload_dir), or an index of where they are",
          detail::name_list(names)));
    }
    offload_state_dict(folder, to_write);
    stored_.add(detail::stored_in_offload_folder(folder));
  }

  std::unique_ptr<Dispatch::State> run(detail::TierOptions options) {
    const at::NoGradGuard no_grad;
    find_sources();
    auto state = std::make_unique<Dispatch::State>();
    state->map = *request_.device_map;
    state->main_device = request_.main_device;
    std::vector<at::Tensor> moved = resident_values();
    place_codes();
    for (std::size_t i = 0; i < moved.size(); ++i) {
      if (moved[i].defined())
        detail::replace_in_place(plan_.resident[i].first, moved[i]);
    }
    options.moves_inputs = plan_.has_several_devices;
    if (plan_.has_several_devices) watch(*state);
    if (!plan_.kept.tensors.empty()) {
      state->keeper = std::make_shared<detail::TierKeeper>(
          std::move(plan_.kept), std::move(options));
    }
    return state;
  }

 private:
  void warn_of_others(const fs::path& folder) const {
    std::vector<detail::ValueInMemory> values;
    for (std::size_t i = 0; i < plan_.kept.tensors.size(); ++i) {
      if (!plan_.is_on_disk[i] || plan_.is_code[i]) continue;
      const at::Tensor value =
          value_of(plan_.kept_names[i], plan_.kept.tensors[i].tensor);
      if (value.defined()) values.push_back({plan_.kept_names[i], value, true});
    }
    for (const detail::PlannedCodes& each : plan_.codes) {
      if (!each.is_on_disk) continue;
      for (const auto& part : each.codes.keeper->coded_parts(each.codes.unit))
        values.push_back(
            {{each.layers.front() + part.name}, part.tensor, false});
    }
    const std::vector<std::string> others = detail::other_in(folder, values);
    if (others.empty()) return;
    Logger().log(
        LogLevel::warning,
        "big_model",
        format(
            "{} has other values for {}, which are used: it is the offload "
            "folder of another model, or this one was trained since; give "
            "another folder, or remove it, and it is filled again",
            folder.string(),
            detail::name_list(others)));
  }

  static void require_values(const std::vector<std::string>& lost) {
    if (lost.empty()) return;
    throw ConfigError(format(
        "[big_model] there are no values for {}: they are on the meta device, "
        "and neither state_dict nor the offload folder or index has them",
        detail::name_list(lost)));
  }

  [[nodiscard]] bool has_file(std::size_t kept) const {
    const auto stored = stored_.find(plan_.kept_names[kept]);
    const at::Tensor& tensor = plan_.kept.tensors[kept].tensor;
    return stored &&
        detail::torch_dtype(stored->dtype) == tensor.scalar_type() &&
        tensor.sizes() ==
        at::IntArrayRef(detail::torch_shape(stored->dtype, stored->shape));
  }

  // All parts, also those that stay in memory: the folder has the weight.
  [[nodiscard]] WeightList codes_to_write() const {
    WeightList parts;
    for (const detail::PlannedCodes& each : plan_.codes) {
      const bool is_there = has_stored_codes_ &&
          std::all_of(each.kept.begin(), each.kept.end(), [&](std::size_t i) {
                              return has_file(i);
                            });
      if (!each.is_on_disk || is_there) continue;
      for (const auto& [name, tensor, may_be_offloaded] :
           each.codes.keeper->coded_parts(each.codes.unit)) {
        parts.emplace_back(each.layers.front() + name, tensor.to(at::kCPU));
      }
    }
    return parts;
  }

  // From here on, the kept tensors are handles that only the keeper of the
  // codes has.
  void place_codes() {
    for (const detail::PlannedCodes& each : plan_.codes) {
      if (each.kept.empty()) {
        each.codes.keeper->move(each.codes.unit, each.device);
        continue;
      }
      const std::vector<at::Tensor> parts =
          each.codes.keeper->take_parts(each.codes.unit, each.device);
      for (std::size_t i = 0; i < parts.size(); ++i)
        plan_.kept.tensors[each.kept[i]].tensor = parts[i];
    }
  }

  // Undefined if the tensor is on the meta device and nobody gave values.
  [[nodiscard]] at::Tensor value_of(
      const std::vector<std::string>& names,
      const at::Tensor& tensor) const {
    for (const std::string& name : names) {
      const auto found = values_.find(name);
      if (found != values_.end()) return found->second;
    }
    return tensor.is_meta() ? at::Tensor() : tensor.variable_data();
  }

  void find_sources() {
    std::vector<std::string> lost;
    for (std::size_t i = 0; i < plan_.kept.tensors.size(); ++i) {
      detail::OffloadedTensor& kept = plan_.kept.tensors[i];
      if (plan_.is_on_disk[i]) {
        kept.source.stored = stored_.find(plan_.kept_names[i]);
        require_same_shape(kept);
      } else {
        // A state dict has values, not codes.
        kept.source.host = on_host(
            plan_.is_code[i] ? kept.tensor
                             : value_of(plan_.kept_names[i], kept.tensor),
            kept.device);
        if (!kept.source.host.defined()) lost.push_back(kept.name);
      }
    }
    for (std::size_t i = 0; i < plan_.resident.size(); ++i) {
      const at::Tensor& tensor = plan_.resident[i].first;
      if (tensor.is_meta() &&
          !value_of(plan_.resident_names[i], tensor).defined() &&
          !stored_.find(plan_.resident_names[i])) {
        lost.push_back(plan_.resident_names[i].front());
      }
    }
    require_values(lost);
  }

  void require_free() const {
    for (const detail::OffloadedTensor& kept : plan_.kept.tensors)
      require_plain(kept.name, kept.tensor);
    for (const detail::PlannedCodes& each : plan_.codes) {
      const auto parts = each.codes.keeper->coded_parts(each.codes.unit);
      for (const detail::CodedPart& part : parts)
        require_plain(each.layers.front() + part.name, part.tensor);
    }
  }

  static void require_plain(const std::string& name, const at::Tensor& tensor) {
    if (detail::keeper_of(tensor) != nullptr) {
      throw ConfigError(format(
          "[big_model] {} is offloaded or sharded already: release() its "
          "dispatched model first",
          name));
    }
    if (tensor.is_meta() || tensor.is_non_overlapping_and_dense()) return;
    throw ConfigError(format(
        "[big_model] {} has gaps between its elements, so it cannot be "
        "offloaded; make it contiguous",
        name));
  }

  static void require_same_shape(const detail::OffloadedTensor& kept) {
    const detail::StoredTensor& stored = *kept.source.stored;
    const auto shape = detail::torch_shape(stored.dtype, stored.shape);
    if (kept.tensor.sizes() == at::IntArrayRef(shape)) return;
    throw ConfigError(format(
        "[big_model] {} has shape {} on the disk and {} in the model: the "
        "weights are those of another model",
        kept.name,
        detail::shape_text(shape),
        detail::shape_text(kept.tensor.sizes())));
  }

  // Pinned where a device copies from it, if there is such memory.
  static at::Tensor on_host(at::Tensor value, c10::Device device) {
    if (!value.defined()) return value;
    value = value.detach().to(at::kCPU);
    if (device.is_cpu() || value.is_pinned()) return value;
    try {
      return value.pin_memory();
    } catch (const std::exception&) {
      return value;
    }
  }

  [[nodiscard]] std::vector<at::Tensor> resident_values() const {
    std::vector<at::Tensor> moved;
    for (std::size_t i = 0; i < plan_.resident.size(); ++i) {
      const auto& [tensor, device] = plan_.resident[i];
      at::Tensor value = value_of(plan_.resident_names[i], tensor);
      if (!value.defined()) {
        const detail::OffloadedTensor read{
            plan_.resident_names[i].front(),
            tensor,
            {{}, stored_.find(plan_.resident_names[i])},
            device,
            0};
        value = fetch_one(read);
      }
      const bool is_there = tensor.device() == device && !tensor.is_meta() &&
          value.data_ptr() == tensor.data_ptr();
      moved.push_back(
          is_there ? at::Tensor()
                   : value.to(value.options().device(device).dtype(
                         tensor.scalar_type())));
    }
    return moved;
  }

  static at::Tensor fetch_one(const detail::OffloadedTensor& tensor) {
    require_same_shape(tensor);
    detail::FetchRequest request{{&tensor}, {}};
    request.buffer = at::empty(
        {static_cast<std::int64_t>(detail::buffer_bytes(request.tensors))},
        at::kByte);
    return detail::fetch({request}).front().values.front();
  }

  void watch(Dispatch::State& state) const {
    const auto mover = std::make_shared<detail::InputMover>(&state);
    const auto watch_one = [&](const at::Tensor& tensor) {
      if (!tensor.is_non_overlapping_and_dense()) return;
      detail::watch_tensor(tensor, {mover, 0, &state});
      state.watched.push_back(tensor);
    };
    for (const auto& [tensor, device] : plan_.resident) watch_one(tensor);
    for (const detail::PlannedCodes& each : plan_.codes)
      watch_one(each.parameter);
  }

  torch::nn::Module& module_;
  const detail::DispatchRequest& request_;
  detail::DispatchPlan plan_;
  std::unordered_map<std::string, at::Tensor> values_;
  detail::StoredWeights stored_;
  bool has_stored_codes_ = false;
};

std::uint64_t memory_of(const std::optional<ByteSize>& size) {
  return size ? static_cast<std::uint64_t>(size->bytes()) : 0;
}

c10::Device main_device_of(
    const DeviceMap& map,
    const std::optional<MapDevice>& given) {
  if (given) return detail::torch_device(*given);
  for (const MapDevice& place : map.places()) {
    if (place.is_accelerator()) return detail::torch_device(place);
  }
  return c10::kCPU;
}

c10::Device execution_device_of(
    const torch::nn::Module& module,
    const std::optional<c10::Device>& given) {
  if (given) return *given;
  for (const at::Tensor& parameter : module.parameters())
    return parameter.is_meta() ? c10::Device(c10::kCPU) : parameter.device();
  return c10::kCPU;
}

detail::DispatchRequest request_of(
    const DispatchOptions& options,
    c10::Device main_device) {
  const auto places = options.device_map.places();
  const bool is_forced = options.force_hooks && places.size() == 1;
  return {
      .device_map = &options.device_map,
      .main_device = main_device,
      .offloads_host = !main_device.is_cpu() || is_forced,
      .offload_buffers = options.offload_buffers,
      .preload_module_classes = options.preload_module_classes};
}

detail::DispatchRequest request_of(
    const DeviceMap& map,
    const torch::nn::Module& module,
    const OffloadOptions& options) {
  return {
      .device_map = &map,
      .main_device = execution_device_of(module, options.execution_device),
      .offloads_host = true,
      .offload_buffers = options.offload_buffers,
      .preload_module_classes = options.preload_module_classes};
}

}  // namespace

Dispatch::Dispatch() : state_(std::make_unique<State>()) {}
Dispatch::Dispatch(std::unique_ptr<State> state) : state_(std::move(state)) {}
Dispatch::Dispatch(Dispatch&&) noexcept = default;
Dispatch& Dispatch::operator=(Dispatch&&) noexcept = default;
Dispatch::~Dispatch() = default;

const DeviceMap& Dispatch::device_map() const { return state_->map; }
c10::Device Dispatch::main_device() const { return state_->main_device; }

DispatchStats Dispatch::stats() const {
  return state_->keeper ? state_->keeper->stats() : DispatchStats();
}

void Dispatch::offload() {
  if (state_->keeper) state_->keeper->evict_all();
}

void Dispatch::release() {
  state_->unwatch();
  if (state_->keeper) state_->keeper->release_all();
}

Dispatch dispatch_module(
    torch::nn::Module& module,
    const DispatchOptions& options) {
  if (options.device_map.empty()) {
    throw ConfigError(
        "[big_model] dispatch_model() needs a device_map; "
        "infer_auto_device_map() makes one");
  }
  check_device_map(module, options.device_map);
  const detail::DispatchRequest request = request_of(
      options, main_device_of(options.device_map, options.main_device));
  Dispatcher dispatcher(module, request, options.state_dict);
  dispatcher.use_disk(options.offload_dir, options.offload_index);
  return Dispatch(
      dispatcher.run({.memory = memory_of(options.prefetch_memory)}));
}

namespace detail {

Dispatch dispatch_loaded_codes(
    torch::nn::Module& module,
    const DispatchOptions& options) {
  const DispatchRequest request = request_of(
      options, main_device_of(options.device_map, options.main_device));
  Dispatcher dispatcher(module, request, {});
  if (fs::exists(options.offload_dir / kOffloadIndexName))
    dispatcher.add_stored_codes(stored_in_offload_folder(options.offload_dir));
  dispatcher.use_disk(options.offload_dir, {});
  return Dispatch(
      dispatcher.run({.memory = memory_of(options.prefetch_memory)}));
}

}  // namespace detail

Dispatch cpu_offload_module(
    torch::nn::Module& module,
    const OffloadOptions& options) {
  const DeviceMap map{{"", "cpu"}};
  const auto request = request_of(map, module, options);
  Dispatcher dispatcher(module, request, options.state_dict);
  return Dispatch(
      dispatcher.run({.memory = memory_of(options.prefetch_memory)}));
}

Dispatch disk_offload_module(
    torch::nn::Module& module,
    const fs::path& offload_dir,
    const OffloadOptions& options) {
  const DeviceMap map{{"", "disk"}};
  const auto request = request_of(map, module, options);
  Dispatcher dispatcher(module, request, options.state_dict);
  dispatcher.use_disk(offload_dir, {});
  return Dispatch(
      dispatcher.run({.memory = memory_of(options.prefetch_memory)}));
}

UserCpuOffloadHook::UserCpuOffloadHook(std::shared_ptr<Link> link)
    : link_(std::move(link)) {}

void UserCpuOffloadHook::offload() const {
  if (!link_) return;
  if (const auto keeper = link_->keeper.lock()) keeper->evict_all();
}

void UserCpuOffloadHook::remove() const {
  if (!link_) return;
  if (const auto keeper = link_->keeper.lock()) keeper->release_all();
}

std::pair<Dispatch, UserCpuOffloadHook> cpu_offload_module_with_hook(
    torch::nn::Module& module,
    std::optional<c10::Device> execution_device,
    const UserCpuOffloadHook& prev_module_hook) {
  const DeviceMap map{{"", "cpu"}};
  const detail::DispatchRequest request{
      .device_map = &map,
      .main_device = execution_device_of(module, execution_device),
      .offloads_host = true,
      .offload_buffers = true,
      .is_one_unit = true};
  Dispatcher dispatcher(module, request, {});
  auto state = dispatcher.run(
      {.keeps_fetched = true,
       .before_first = [prev_module_hook] { prev_module_hook.offload(); }});
  auto link = std::make_shared<UserCpuOffloadHook::Link>(
      UserCpuOffloadHook::Link{state->keeper});
  return {Dispatch(std::move(state)), UserCpuOffloadHook(std::move(link))};
}

namespace {

// The places while a checkpoint is read whose own files stay the disk tier.
DeviceMap without_disk(const torch::nn::Module& module, const DeviceMap& map) {
  std::vector<std::pair<std::string, MapDevice>> entries;
  for (const Placement& each : map.placements())
    entries.emplace_back(
        each.name, each.device.is_disk() ? MapDevice("meta") : each.device);
  for (const auto& item : module.named_buffers()) {
    const auto place = map.device_of(item.key());
    if (place && place->is_disk() && !map.find(item.key()))
      entries.emplace_back(item.key(), "cpu");
  }
  return DeviceMap(entries);
}

DeviceMap map_of(
    const torch::nn::Module& module,
    const LoadAndDispatchOptions& options) {
  if (const auto* const map = std::get_if<DeviceMap>(&options.device_map))
    return *map;
  InferAutoDeviceMapOptions inferring{
      .max_memory = options.max_memory,
      .no_split_module_classes = options.no_split_module_classes,
      .offload_buffers = options.offload_buffers};
  if (options.dtype) {
    inferring.dtype =
        at::elementSize(*options.dtype) == 2 ? "float16" : "float32";
  }
  return infer_auto_device_map(
      module, std::get<std::string>(options.device_map), inferring);
}

}  // namespace

Dispatch load_checkpoint_and_dispatch_module(
    torch::nn::Module& module,
    const fs::path& checkpoint,
    const LoadAndDispatchOptions& options) {
  const DeviceMap map = map_of(module, options);
  const auto places = map.places();
  const bool reads_in_place = options.offload_folder.empty() &&
      std::any_of(places.begin(), places.end(), [](const auto& place) {
                                return place.is_disk();
                              });
  LoadCheckpointOptions loading{
      .device_map = reads_in_place ? without_disk(module, map) : map,
      .offload_folder = options.offload_folder,
      .dtype = options.dtype,
      .offload_state_dict = options.offload_state_dict,
      .offload_buffers = options.offload_buffers,
      .strict = options.strict,
      .full_state_dict = options.full_state_dict,
      .broadcast_from_rank0 = options.broadcast_from_rank0,
      .group = options.group};
  if (!map.empty()) check_device_map(module, map);
  load_checkpoint_in_model(module, checkpoint, loading);
  if (map.empty()) return {};
  const DispatchOptions dispatching{
      .device_map = map,
      .main_device = options.main_device,
      .offload_buffers = options.offload_buffers,
      .preload_module_classes = options.preload_module_classes,
      .force_hooks = options.force_hooks};
  const detail::DispatchRequest request =
      request_of(dispatching, main_device_of(map, options.main_device));
  Dispatcher dispatcher(module, request, {});
  if (reads_in_place)
    dispatcher.add_stored(detail::open_renamed(checkpoint, {}));
  dispatcher.use_disk(options.offload_folder, {});
  return Dispatch(
      dispatcher.run({.memory = memory_of(options.prefetch_memory)}));
}

}  // namespace accelerate
