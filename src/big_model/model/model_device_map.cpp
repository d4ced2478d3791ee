#include <accelerate/model_device_map.h>

#include <utility>

#include <accelerate/log.h>

#include "base/text/sizes.h"
#include "base/text/text.h"
#include "big_model/plan/block_plan.h"
#include "big_model/plan/check_map.h"
#include "big_model/plan/device_map_inference.h"
#include "big_model/plan/memory_limits.h"
#include "big_model/plan/sized_tree.h"
#include "params/model_modules.h"

namespace accelerate {

namespace {

void log_lines(LogLevel level, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) Logger().log(level, "big_model", line);
}

// Devices that stay empty, with the memory that would change that.
std::vector<std::string> unused_devices(const DeviceMap& map) {
  std::vector<std::string> lines;
  for (const DeviceUse& use : map.devices()) {
    if (!use.minimum_needed) continue;
    lines.push_back(detail::format(
        "the device {} stays empty: the next module needs {}",
        use.device.name(),
        detail::format_size(*use.minimum_needed)));
  }
  return lines;
}

}  // namespace

std::map<std::string, double> compute_module_sizes(
    const torch::nn::Module& model,
    const ModuleSizesOptions& options) {
  return detail::module_sizes(detail::module_tree(model), options);
}

double compute_module_total_buffer_size(
    const torch::nn::Module& model,
    const ModuleSizesOptions& options) {
  ModuleSizesOptions buffers = options;
  buffers.buffers_only = true;
  return detail::total_module_size(detail::module_tree(model), buffers);
}

MaximumSizes calculate_maximum_sizes(
    const torch::nn::Module& model,
    const std::vector<std::string>& no_split_module_classes) {
  const detail::ModuleNode tree = detail::module_tree(model);
  auto largest = detail::largest_layer(tree, {}, no_split_module_classes);
  return {
      detail::total_module_size(tree, {}),
      largest.num_bytes,
      std::move(largest.names)};
}

std::vector<std::vector<std::string>> find_tied_parameters(
    const torch::nn::Module& model) {
  return detail::tied_parameters(detail::module_tree(model));
}

MaxMemory get_balanced_memory(
    const torch::nn::Module& model,
    const GetBalancedMemoryOptions& options) {
  return detail::balanced_memory(
      detail::module_tree(model),
      get_max_memory(options.max_memory),
      {options.no_split_module_classes,
       options.dtype,
       options.special_dtypes,
       options.low_zero,
       /*is_measured=*/options.max_memory.empty()});
}

DeviceMap infer_auto_device_map(
    const torch::nn::Module& model,
    const InferAutoDeviceMapOptions& options) {
  InferAutoDeviceMapOptions limited = options;
  limited.max_memory = get_max_memory(options.max_memory);
  const detail::ModuleNode tree = detail::module_tree(model);
  DeviceMap map = detail::complete_device_map(
      tree, detail::infer_device_map(tree, limited));
  log_lines(LogLevel::warning, map.warnings());
  log_lines(LogLevel::info, unused_devices(map));
  if (options.verbose)
    log_lines(
        LogLevel::info, {detail::format("device map:\n{}", map.explain())});
  return map;
}

void check_device_map(
    const torch::nn::Module& model,
    const DeviceMap& device_map) {
  const std::string warning =
      detail::require_complete_map(detail::module_tree(model), device_map);
  if (!warning.empty()) log_lines(LogLevel::warning, {warning});
}

PlannedDeviceMap plan_device_map(
    const torch::nn::Module& model,
    const PlanDeviceMapOptions& options) {
  PlanDeviceMapOptions limited = options;
  limited.max_memory = get_max_memory(options.max_memory);
  return detail::plan_map(detail::module_tree(model), limited);
}

}  // namespace accelerate
