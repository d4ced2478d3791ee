#include "big_model/tiers/dispatch/dispatcher.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ArrayRef.h>

#include <accelerate/error.h>
#include <accelerate/log.h>

#include "base/text/text.h"
#include "big_model/model/map_place.h"
#include "big_model/model/module_tensor.h"
#include "big_model/offload/offload_folder.h"
#include "big_model/offload/weight_dtype.h"
#include "big_model/tiers/dispatch/dispatch_state.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "gate/first_of.h"
#include "gate/gate.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

// Watches the weights of a model spread over several devices: an operator runs
// on the device of its first weight, and its other tensors are moved there.
class InputMover final : public GateKeeper {
 public:
  /// `owner` identifies the owner of the watches (TensorWatch).
  InputMover(const void* owner, std::size_t num_places)
      : owner_(owner), num_places_(num_places) {}
  void call(GatedCall& call) override {
    const auto arguments = call.arguments();
    const c10::IValue* const weight = first_of(
        c10::ArrayRef<c10::IValue>(arguments.data(), arguments.size()),
        [&](const c10::IValue& value) {
          return find_watch(value, owner_) != nullptr ? &value : nullptr;
        });
    if (weight != nullptr) call.move_to(weight->toTensor().device());
    call.run();
  }
  [[nodiscard]] std::size_t num_places() const override { return num_places_; }

 private:
  const void* owner_;
  std::size_t num_places_;
};

// A weight in memory that may also be in an offload folder.
struct ValueInMemory {
  /// All names under which the folder may store the weight.
  std::vector<std::string> names;
  at::Tensor value;
  /// The folder may store another dtype; if so, values are not compared.
  bool may_be_converted = false;
};

// Names of the weights whose contents differ in an offload folder, by its
// checksums. Folders written by Python programs have no checksums and are
// trusted.
std::vector<std::string> other_in(
    const std::filesystem::path& folder,
    const std::vector<ValueInMemory>& values) {
  const OffloadFolder there = read_offload_folder(folder);
  std::vector<std::string> others;
  for (const auto& [names, value, may_be_converted] : values) {
    for (const std::string& name : names) {
      const OffloadedWeight* const entry = there.index.find(name);
      const auto record = there.records.find(name);
      if (entry == nullptr || record == there.records.end()) continue;
      const bool is_alike =
          parse_torch_dtype(entry->dtype) == value.scalar_type() &&
          value.sizes() == at::IntArrayRef(entry->shape);
      const bool is_other = is_alike
          ? offload_record_of(to_write(name, value)) != record->second
          : !may_be_converted;
      if (is_other) others.push_back(name);
      break;
    }
  }
  return others;
}

namespace fs = std::filesystem;

void require_values(const std::vector<std::string>& lost) {
  if (lost.empty()) return;
  throw ConfigError(format(
      "[big_model] there are no values for {}: they are on the meta device, "
      "and neither state_dict nor the offload folder or index has them",
      name_list(lost)));
}

void require_plain(const std::string& name, const at::Tensor& tensor) {
  if (keeper_of(tensor) != nullptr) {
    throw ConfigError(format(
        "[big_model] {} is already offloaded or sharded: release() its "
        "dispatched model first",
        name));
  }
  if (tensor.is_meta() || tensor.is_non_overlapping_and_dense()) return;
  throw ConfigError(format(
      "[big_model] {} has gaps between its elements, so it cannot be "
      "offloaded; make it contiguous",
      name));
}

void require_same_shape(const OffloadedTensor& kept) {
  const StoredTensor& stored = *kept.source.stored;
  const auto shape = torch_shape(stored.dtype, stored.shape);
  if (kept.tensor.sizes() == at::IntArrayRef(shape)) return;
  throw ConfigError(format(
      "[big_model] {} has shape {} on the disk, but {} in the model: the "
      "weights belong to another model",
      kept.name,
      at::IntArrayRef(shape),
      kept.tensor.sizes()));
}

}  // namespace

std::uint64_t memory_of(const std::optional<ByteSize>& size) {
  return size ? static_cast<std::uint64_t>(size->bytes()) : 0;
}

c10::Device main_device_of(
    const DeviceMap& map,
    const std::optional<MapDevice>& given) {
  if (given) return torch_device(*given);
  for (const MapDevice& place : map.places()) {
    if (place.is_accelerator()) return torch_device(place);
  }
  return c10::kCPU;
}

DispatchRequest request_of(const DispatchOptions& options) {
  const c10::Device main_device =
      main_device_of(options.device_map, options.main_device);
  const auto places = options.device_map.places();
  const bool is_forced = options.force_hooks && places.size() == 1;
  return {
      .device_map = &options.device_map,
      .main_device = main_device,
      .offloads_host = !main_device.is_cpu() || is_forced,
      .offload_buffers = options.offload_buffers,
      .preload_module_classes = options.preload_module_classes,
      .skip_keys = options.skip_keys};
}

Dispatcher::Dispatcher(
    const torch::nn::Module& module,
    const DispatchRequest& request,
    const WeightList& state_dict)
    : request_(request), plan_(plan_dispatch(module, request)) {
  for (const auto& [name, value] : state_dict) values_.emplace(name, value);
  require_free();
}

void Dispatcher::add_stored_codes(const StoredTensors& tensors) {
  add_stored(tensors);
  has_stored_codes_ = true;
}

void Dispatcher::use_disk(
    const fs::path& folder,
    const OffloadIndex& index,
    bool refuses_others) {
  if (std::ranges::find(plan_.is_on_disk, true) == plan_.is_on_disk.end()) {
    return;
  }
  if (!folder.empty() && fs::exists(folder / kOffloadIndexName)) {
    stored_.add(stored_in_offload_folder(folder));
    if (!has_stored_codes_) look_for_others(folder, refuses_others);
  }
  stored_.add(index, folder);
  WeightList to_write = codes_to_write();
  std::vector<std::string> lost;
  for (std::size_t i = 0; i < plan_.kept.tensors.size(); ++i) {
    if (plan_.is_code[i]) continue;
    if (!plan_.is_on_disk[i] || stored_.find(plan_.kept_names[i])) continue;
    const at::Tensor value =
        value_of(plan_.kept_names[i], plan_.kept.tensors[i].tensor).tensor;
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
        "[big_model] the device map puts {} on the disk: pass a folder for "
        "them (offload_dir), or an index of their locations",
        name_list(names)));
  }
  offload_state_dict(folder, to_write);
  stored_.add(stored_in_offload_folder(folder));
}

std::unique_ptr<Dispatch::State> Dispatcher::run(TierOptions options) {
  const at::NoGradGuard no_grad;
  find_sources();
  auto state = std::make_unique<Dispatch::State>();
  state->map = *request_.device_map;
  state->main_device = request_.main_device;
  state->skip_keys = request_.skip_keys;
  std::vector<at::Tensor> moved = resident_values();
  place_codes();
  for (std::size_t i = 0; i < moved.size(); ++i) {
    if (moved[i].defined()) replace_in_place(plan_.resident[i].first, moved[i]);
  }
  options.moves_inputs = plan_.has_several_devices;
  options.num_places = request_.device_map->size();
  if (plan_.has_several_devices) {
    watch(*state);
    state->following.emplace();
  }
  if (!plan_.kept.tensors.empty()) {
    state->keeper =
        std::make_shared<TierKeeper>(std::move(plan_.kept), std::move(options));
  }
  return state;
}

// Unquantized values in the folder are used, hence the warning; codes are
// rewritten.
void Dispatcher::look_for_others(const fs::path& folder, bool refuses_others)
    const {
  std::vector<ValueInMemory> values, codes;
  for (std::size_t i = 0; i < plan_.kept.tensors.size(); ++i) {
    if (!plan_.is_on_disk[i] || plan_.is_code[i]) continue;
    const at::Tensor value =
        value_of(plan_.kept_names[i], plan_.kept.tensors[i].tensor).tensor;
    if (value.defined()) values.push_back({plan_.kept_names[i], value, true});
  }
  for (const PlannedCodes& each : plan_.codes) {
    if (!each.is_on_disk) continue;
    for (const auto& part : each.codes.keeper->code_tensors(each.codes.unit))
      codes.push_back({{each.layers.front() + part.name}, part.tensor, false});
  }
  const std::vector<std::string> others = other_in(folder, values);
  if (refuses_others) {
    std::vector<std::string> all = others;
    for (const std::string& name : other_in(folder, codes)) all.push_back(name);
    if (all.empty()) return;
    throw ConfigError(format(
        "[big_model] {} has other values for {}: it is the offload folder of "
        "another model, or this one was trained since; use another folder, or "
        "remove it, and it will be filled again",
        folder.string(),
        name_list(all)));
  }
  if (others.empty()) return;
  Logger().log(
      LogLevel::warning,
      "big_model",
      format(
          "{} has other values for {}, which are used: it is the offload "
          "folder of another model, or this one was trained since; use another "
          "folder, or remove it, and it will be filled again",
          folder.string(),
          name_list(others)));
}

bool Dispatcher::has_file(std::size_t kept) const {
  const auto stored = stored_.find(plan_.kept_names[kept]);
  const at::Tensor& tensor = plan_.kept.tensors[kept].tensor;
  return stored && torch_dtype(stored->dtype) == tensor.scalar_type() &&
      tensor.sizes() ==
      at::IntArrayRef(torch_shape(stored->dtype, stored->shape));
}

// Includes the parts that stay in memory: the folder holds complete weights.
WeightList Dispatcher::codes_to_write() const {
  WeightList parts;
  for (const PlannedCodes& each : plan_.codes) {
    const bool is_there = has_stored_codes_ &&
        std::ranges::all_of(each.kept,
                            [&](std::size_t i) { return has_file(i); });
    if (!each.is_on_disk || is_there) continue;
    for (const auto& [name, tensor, may_be_offloaded] :
         each.codes.keeper->code_tensors(each.codes.unit)) {
      parts.emplace_back(each.layers.front() + name, tensor.to(at::kCPU));
    }
  }
  return parts;
}

// From here on, the kept tensors are handles held only by the keeper of the
// codes.
void Dispatcher::place_codes() {
  for (const PlannedCodes& each : plan_.codes) {
    if (each.kept.empty()) {
      each.codes.keeper->move(each.codes.unit, each.device);
      continue;
    }
    const std::vector<at::Tensor> parts =
        each.codes.keeper->take_tensors(each.codes.unit, each.device);
    for (std::size_t i = 0; i < parts.size(); ++i)
      plan_.kept.tensors[each.kept[i]].tensor = parts[i];
  }
}

// Undefined if the tensor is on the meta device and no values were given.
Dispatcher::Value Dispatcher::value_of(
    const std::vector<std::string>& names,
    const at::Tensor& tensor) const {
  for (const std::string& name : names) {
    const auto found = values_.find(name);
    if (found != values_.end()) return {found->second, true};
  }
  return {tensor.is_meta() ? at::Tensor() : tensor.variable_data()};
}

void Dispatcher::find_sources() {
  std::vector<std::string> lost;
  for (std::size_t i = 0; i < plan_.kept.tensors.size(); ++i) {
    OffloadedTensor& kept = plan_.kept.tensors[i];
    if (plan_.is_on_disk[i]) {
      kept.source.stored = stored_.find(plan_.kept_names[i]);
      require_same_shape(kept);
      continue;
    }
    // State dicts hold values, not codes.
    const Value value = plan_.is_code[i]
        ? Value{kept.tensor}
        : value_of(plan_.kept_names[i], kept.tensor);
    if (!value.tensor.defined()) {
      lost.push_back(kept.name);
      continue;
    }
    kept.source.host = on_host(value.tensor, kept.device);
    kept.source.is_borrowed =
        value.is_borrowed && kept.source.host.is_alias_of(value.tensor);
  }
  for (std::size_t i = 0; i < plan_.resident.size(); ++i) {
    const at::Tensor& tensor = plan_.resident[i].first;
    if (tensor.is_meta() &&
        !value_of(plan_.resident_names[i], tensor).tensor.defined() &&
        !stored_.find(plan_.resident_names[i])) {
      lost.push_back(plan_.resident_names[i].front());
    }
  }
  require_values(lost);
}

void Dispatcher::require_free() const {
  for (const OffloadedTensor& kept : plan_.kept.tensors)
    require_plain(kept.name, kept.tensor);
  for (const PlannedCodes& each : plan_.codes) {
    const auto parts = each.codes.keeper->code_tensors(each.codes.unit);
    for (const CodeTensor& part : parts)
      require_plain(each.layers.front() + part.name, part.tensor);
  }
}

std::vector<at::Tensor> Dispatcher::resident_values() const {
  std::vector<at::Tensor> moved;
  for (std::size_t i = 0; i < plan_.resident.size(); ++i) {
    const auto& [tensor, device] = plan_.resident[i];
    Value value = value_of(plan_.resident_names[i], tensor);
    if (!value.tensor.defined()) {
      const OffloadedTensor read{
          plan_.resident_names[i].front(),
          tensor,
          {{}, false, stored_.find(plan_.resident_names[i])},
          device,
          0};
      require_same_shape(read);
      value.tensor = fetch_now(read);
    }
    const bool is_there = tensor.device() == device && !tensor.is_meta() &&
        value.tensor.data_ptr() == tensor.data_ptr();
    if (is_there) {
      moved.emplace_back();
      continue;
    }
    const auto options =
        value.tensor.options().device(device).dtype(tensor.scalar_type());
    moved.push_back(value.tensor.to(
        options, /*non_blocking=*/false, /*copy=*/value.is_borrowed));
  }
  return moved;
}

void Dispatcher::watch(Dispatch::State& state) const {
  const auto mover =
      std::make_shared<InputMover>(&state, request_.device_map->size());
  const auto watch_one = [&](const at::Tensor& tensor) {
    if (!tensor.is_non_overlapping_and_dense()) return;
    watch_tensor(tensor, {mover, 0, &state});
    state.watched.push_back(tensor);
  };
  for (const auto& [tensor, device] : plan_.resident) watch_one(tensor);
  for (const PlannedCodes& each : plan_.codes) watch_one(each.parameter);
}

}  // namespace accelerate::detail
