#include "big_model/plan/memory_limits.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "big_model/plan/sized_tree.h"

namespace accelerate::detail {

namespace {

bool has_parameters(const SizedTree& tree, int module) {
  return tree[module].num_bytes > tree[module].num_buffer_bytes;
}

// Bytes of the largest module of the given classes, where the first module of
// each class stands for the others. Modules with only buffers come last, as
// they do in a list of parameters followed by buffers.
double largest_unsplit(
    const SizedTree& tree,
    const std::vector<std::string>& classes) {
  double largest = 0;
  std::map<std::string_view, double> sizes;
  for (const bool parameters : {true, false}) {
    for (int i = 1; i < tree.size(); ++i) {
      if (tree[i].is_no_split && tree[i].has_tensors &&
          has_parameters(tree, i) == parameters) {
        sizes.emplace(tree[i].class_name, tree[i].num_bytes);
      }
    }
  }
  if (classes.empty()) return 0;
  for (const auto& [name, size] : sizes) largest = std::max(largest, size);
  return largest;
}

bool has_modules_with_tensors(const SizedTree& tree, int module) {
  for (int i = module + 1; i < tree[module].end; i = tree[i].end) {
    if (tree.is_module(i) && tree[i].has_tensors) return true;
  }
  return false;
}

// Mean size of the modules that hold tensors themselves but no other such
// modules.
double mean_of_leaves(const SizedTree& tree) {
  double sum = 0;
  double count = 0;
  for (int i = 1; i < tree.size(); ++i) {
    if (!tree.is_module(i) || !tree[i].has_tensors ||
        has_modules_with_tensors(tree, i)) {
      continue;
    }
    sum += tree[i].num_bytes;
    ++count;
  }
  return count == 0 ? 0 : std::trunc(sum / count);
}

// The entries of the devices to balance.
std::vector<std::size_t> accelerators_with_memory(const MaxMemory& limits) {
  std::vector<std::size_t> list;
  for (std::size_t i = 0; i < limits.size(); ++i) {
    if (limits[i].first.index() && limits[i].second.bytes() > 0)
      list.push_back(i);
  }
  return list;
}

// The first device holds what devices 1 to num_devices - 1 cannot.
void keep_first_low(MaxMemory& limits, double total, int num_devices) {
  double others = 0;
  for (const auto& [device, size] : limits) {
    const int index = device.index().value_or(0);
    if (index > 0 && index < num_devices)
      others += static_cast<double>(size.bytes());
  }
  for (auto& [device, size] : limits) {
    if (device == MapDevice(0)) {
      const auto needed =
          static_cast<std::int64_t>(std::max(0.0, std::ceil(total - others)));
      size = std::min(size.bytes(), needed);
    }
  }
}

}  // namespace

MaxMemory normalised_memory(const MaxMemory& max_memory) {
  std::map<MapDevice, ByteSize> limits;
  for (const auto& [device, size] : max_memory)
    limits.insert_or_assign(device, size);
  return {limits.begin(), limits.end()};
}

MaxMemory balanced_memory(
    const ModuleNode& root,
    const MaxMemory& max_memory,
    const BalanceOptions& options) {
  MaxMemory limits = max_memory;
  const auto devices = accelerators_with_memory(limits);
  const auto is_mps = [](const auto& entry) {
    return entry.first == MapDevice("mps");
  };
  if (devices.empty() || std::ranges::any_of(limits, is_mps)) return limits;
  const bool low_zero = options.low_zero && devices.size() > 1;
  if (devices.size() == 1 && options.is_measured) {
    auto& size = limits[devices.front()].second;
    size = static_cast<std::int64_t>(static_cast<double>(size.bytes()) * 0.9);
  }
  const SizedTree tree(
      root,
      {options.dtype, options.special_dtypes},
      options.no_split_module_classes);
  const double total = tree[0].num_bytes;
  const auto shares = static_cast<double>(devices.size() - (low_zero ? 1 : 0));
  const double margin = std::trunc(
      1.25 *
      std::max(
          largest_unsplit(tree, options.no_split_module_classes),
          mean_of_leaves(tree)));
  const auto each =
      static_cast<std::int64_t>(std::floor(total / shares) + margin);
  // The last device keeps its limit, in case the margin is too small.
  for (std::size_t i = 0; i + 1 < devices.size(); ++i) {
    auto& [device, size] = limits[devices[i]];
    if (low_zero && device == MapDevice(0)) continue;
    size = std::min(size.bytes(), each);
  }
  if (low_zero) keep_first_low(limits, total, static_cast<int>(devices.size()));
  return limits;
}

}  // namespace accelerate::detail
