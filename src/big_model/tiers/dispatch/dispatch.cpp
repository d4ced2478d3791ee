#include <accelerate/big_model.h>

#include <accelerate/error.h>

#include "big_model/offload/offload_folder.h"
#include "big_model/tiers/dispatch/dispatch_codes.h"
#include "big_model/tiers/dispatch/dispatch_state.h"
#include "big_model/tiers/dispatch/dispatcher.h"

namespace accelerate {

namespace fs = std::filesystem;
using detail::Dispatcher;
using detail::memory_of;

struct UserCpuOffloadHook::Link {
  std::weak_ptr<detail::TierKeeper> keeper;
};

namespace {

c10::Device execution_device_of(
    const torch::nn::Module& module,
    const std::optional<c10::Device>& given) {
  if (given) return *given;
  for (const at::Tensor& parameter : module.parameters())
    return parameter.is_meta() ? c10::Device(c10::kCPU) : parameter.device();
  return c10::kCPU;
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

const std::vector<std::string>& Dispatch::skip_keys() const {
  return state_->skip_keys;
}

DispatchStats Dispatch::stats() const {
  return state_->keeper ? state_->keeper->stats() : DispatchStats();
}

void Dispatch::leave(const at::Tensor& result) {
  detail::stop_following(result);
}

void Dispatch::offload() {
  if (state_->keeper) state_->keeper->evict_all();
}

void Dispatch::release() {
  state_->unwatch();
  state_->following.reset();
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
  const detail::DispatchRequest request = detail::request_of(options);
  Dispatcher dispatcher(module, request, options.state_dict);
  dispatcher.use_disk(
      options.offload_dir, options.offload_index, options.strict_offload_dir);
  return Dispatch(
      dispatcher.run({.memory = memory_of(options.prefetch_memory)}));
}

namespace detail {

Dispatch dispatch_loaded_codes(
    torch::nn::Module& module,
    const DispatchOptions& options) {
  const DispatchRequest request = request_of(options);
  Dispatcher dispatcher(module, request, {});
  if (!options.offload_dir.empty() &&
      fs::exists(options.offload_dir / kOffloadIndexName))
    dispatcher.add_stored_codes(stored_in_offload_folder(options.offload_dir));
  dispatcher.use_disk(options.offload_dir, {}, options.strict_offload_dir);
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
  dispatcher.use_disk(offload_dir, {}, options.strict_offload_dir);
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

}  // namespace accelerate
