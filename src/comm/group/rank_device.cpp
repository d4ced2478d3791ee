#include "comm/group/rank_device.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

// By these, a scheduler may show each process devices of its own.
constexpr std::array<std::string_view, 10> kDevicesSeen{
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ASCEND_RT_VISIBLE_DEVICES",
    "MLU_VISIBLE_DEVICES",
    "SDAA_VISIBLE_DEVICES",
    "MUSA_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "NEURON_RT_VISIBLE_CORES"};

int num_devices_of(at::DeviceType type) {
  if (!c10::impl::hasDeviceGuardImpl(type)) return 0;
  return c10::impl::VirtualGuardImpl(type).deviceCount();
}

std::string kind_of(at::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

[[noreturn]] void refuse_device(
    const std::string& name,
    const std::string& where) {
  if (name.starts_with("xla")) {
    throw ConfigError(format(
        "[launch] the device must be one that LibTorch has, but is \"{}\" "
        "({}): TPUs need torch_xla, which exists for Python alone",
        name,
        where));
  }
  const auto accelerator = at::accelerator::getAccelerator(/*checked=*/false);
  throw ConfigError(format(
      "[launch] the device must be one that this LibTorch has, but is \"{}\" "
      "({}); it has cpu{}",
      name,
      where,
      accelerator && num_devices_of(*accelerator) > 0
          ? " and " + kind_of(*accelerator)
          : " only"));
}

class DeviceChooser {
 public:
  DeviceChooser(
      const Settings& settings,
      const Environment& environment,
      const DevicePlace& place)
      : settings_(settings), environment_(environment), place_(place) {}

  // The accelerator of this process's place.
  [[nodiscard]] at::Device own(at::DeviceType type) const {
    const int count = num_devices_of(type);
    const bool may_share = settings_.boolean("share_devices") ||
        std::any_of(kDevicesSeen.begin(),
                    kDevicesSeen.end(),
                    [&](std::string_view name) {
                      return environment_.has(name);
                    });
    if (std::max(place_.num_processes, place_.index + 1) > count &&
        !may_share) {
      throw ConfigError(format(
          "[launch] each rank must have a device of its own, but {} ranks of "
          "this machine would share {} ({}); start fewer, add --cpu, or, for "
          "tests, --share_devices",
          place_.num_processes,
          count == 1 ? std::string("one") : format("{}", count),
          kind_of(type)));
    }
    return {type, static_cast<at::DeviceIndex>(place_.index % count)};
  }

  // A device that was asked for; `where` says by what.
  [[nodiscard]] at::Device named(at::Device device, const std::string& where)
      const {
    if (device.type() == at::DeviceType::XLA)
      refuse_device(device.str(), where);
    if (!at::accelerator::isAccelerator(device.type())) return device;
    const int count = num_devices_of(device.type());
    if (count == 0) refuse_device(device.str(), where);
    if (!device.has_index()) return own(device.type());
    if (device.index() < count) return device;
    throw ConfigError(format(
        "[launch] the device must be one that this process sees, {}:0 to "
        "{}:{}, but is {} ({})",
        kind_of(device.type()),
        kind_of(device.type()),
        count - 1,
        device.str(),
        where));
  }

 private:
  const Settings& settings_;
  const Environment& environment_;
  DevicePlace place_;
};

std::optional<at::Device> device_of_launcher(const Settings& settings) {
  const auto name = settings.text("device");
  if (!name || name->empty()) return std::nullopt;
  try {
    return at::Device(*name);
  } catch (const std::exception&) {
    // As LibTorch says it of a kind that an extension would have to bring.
    refuse_device(*name, settings.find("device")->where);
  }
}

}  // namespace

at::Device choose_device(
    const WorldOptions& options,
    const Settings& settings,
    const Environment& environment,
    const DevicePlace& place) {
  const DeviceChooser chooser(settings, environment, place);
  if (options.device)
    return chooser.named(*options.device, "WorldOptions::device");
  if (options.cpu.value_or(false)) return at::kCPU;
  if (const auto named = device_of_launcher(settings)) {
    // Code that rules out the CPU overrides a launcher that names it.
    if (!options.cpu || !named->is_cpu())
      return chooser.named(*named, settings.find("device")->where);
  }
  const bool keeps_to_cpu = options.cpu.value_or(settings.boolean("use_cpu"));
  const auto accelerator = at::accelerator::getAccelerator();
  if (keeps_to_cpu || !accelerator || num_devices_of(*accelerator) == 0)
    return at::kCPU;
  return chooser.own(*accelerator);
}

}  // namespace accelerate::detail
