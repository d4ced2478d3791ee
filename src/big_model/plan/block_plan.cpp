#include "big_model/plan/block_plan.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <numeric>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"
#include "big_model/plan/sized_tree.h"

namespace accelerate::detail {

namespace {

// Largest number of blocks for which the cost of placing each of them elsewhere
// is computed.
constexpr std::size_t kMostBlocksCompared = 2000;

void require_speeds(const PlanDeviceMapOptions& options) {
  const MachineSpeeds& speeds = options.speeds;
  const std::array<std::pair<const char*, double>, 4> named{{
      {"flops_per_second", speeds.flops_per_second},
      {"memory_bytes_per_second", speeds.memory_bytes_per_second},
      {"link_bytes_per_second", speeds.link_bytes_per_second},
      {"disk_bytes_per_second", speeds.disk_bytes_per_second},
  }};
  for (const auto& [name, value] : named) {
    if (!(value > 0)) {
      throw ConfigError(
          format("[big_model] {} must be above 0, but is {}", name, value));
    }
  }
  if (!(speeds.switch_seconds >= 0) || options.num_tokens < 1) {
    throw ConfigError(format(
        "[big_model] switch_seconds must be at least 0 and num_tokens at least "
        "1, but they are {} and {}",
        speeds.switch_seconds,
        options.num_tokens));
  }
}

// Layers, and other nodes with tensors.
void add_block_nodes(const SizedTree& tree, int node, std::vector<int>& nodes) {
  for (int i = node + 1; i < tree[node].end; i = tree[i].end) {
    if (tree[i].num_bytes_with_ties == 0) continue;
    if (tree.is_splittable(i)) {
      add_block_nodes(tree, i, nodes);
    } else {
      nodes.push_back(i);
    }
  }
}

// Numbers the groups of blocks that share parameters, directly or through other
// blocks.
void number_ties(
    const SizedTree& tree,
    const std::vector<int>& nodes,
    std::vector<PlanBlock>& blocks) {
  std::vector<int> leader(blocks.size());
  std::iota(leader.begin(), leader.end(), 0);
  const auto find = [&](int i) {
    while (leader[static_cast<std::size_t>(i)] != i)
      i = leader[static_cast<std::size_t>(i)];
    return i;
  };
  const auto block_of = [&](int node) {
    return static_cast<int>(
        std::upper_bound(nodes.begin(), nodes.end(), node) - nodes.begin() - 1);
  };
  std::vector<bool> is_tied(blocks.size(), false);
  for (const auto& group : tree.ties()) {
    const int first = block_of(group.front());
    for (const int node : group) {
      const int other = block_of(node);
      if (find(other) == find(first)) continue;
      is_tied[static_cast<std::size_t>(first)] = true;
      is_tied[static_cast<std::size_t>(other)] = true;
      leader[static_cast<std::size_t>(find(other))] = find(first);
    }
  }
  std::map<int, int> numbers;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!is_tied[i]) continue;
    const int number = static_cast<int>(numbers.size());
    blocks[i].tie =
        numbers.emplace(find(static_cast<int>(i)), number).first->second;
  }
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  if (seconds < 1e-3) {
    std::snprintf(text.data(), text.size(), "%.1f us", seconds * 1e6);
  } else if (seconds < 1) {
    std::snprintf(text.data(), text.size(), "%.2f ms", seconds * 1e3);
  } else {
    std::snprintf(text.data(), text.size(), "%.2f s", seconds);
  }
  return text.data();
}

class PlanReport {
 public:
  PlanReport(
      const std::vector<PlanBlock>& blocks,
      const std::vector<BlockPlace>& places,
      const PlanDeviceMapOptions& options,
      const PlanLimits& limits)
      : blocks_(blocks), places_(places), options_(options), limits_(limits) {
    for (const auto& [device, size] : options.max_memory) {
      if (device.is_accelerator()) accelerators_.push_back(device);
    }
    if (accelerators_.empty()) accelerators_.emplace_back("cpu");
  }

  PlannedDeviceMap planned() {
    const double seconds = seconds_of(places_);
    std::vector<Placement> placements;
    ForwardTimeline timeline;
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const double waited = timeline.add(
          blocks_[i], places_[i], options_.speeds, limits_.has_accelerator);
      placements.push_back(
          {blocks_[i].name,
           device_of(places_[i]),
           PlacementReason::planned,
           blocks_[i].num_bytes,
           0,
           0,
           places_[i] < 0 ? fetched_note(i, waited)
                          : resident_note(i, seconds)});
    }
    const std::vector<BlockPlace> resident(blocks_.size(), 0);
    return {
        DeviceMap(std::move(placements), uses()),
        seconds,
        seconds_of(resident),
        options_.no_split_module_classes};
  }

 private:
  double seconds_of(const std::vector<BlockPlace>& places) const {
    return forward_seconds(
        blocks_, places, options_.speeds, limits_.has_accelerator);
  }

  MapDevice device_of(BlockPlace place) const {
    if (place == kFromHost) return "cpu";
    if (place == kFromDisk) return "disk";
    return accelerators_[static_cast<std::size_t>(place)];
  }

  std::string resident_note(std::size_t i, double seconds) const {
    if (blocks_.size() > kMostBlocksCompared) return "resident";
    std::vector<BlockPlace> places = places_;
    places[i] = limits_.host ? kFromHost : kFromDisk;
    const double more = seconds_of(places) - seconds;
    if (more <= 0) return "resident: it fits";
    return format(
        "resident: fetching it would take {} more", seconds_text(more));
  }

  std::string fetched_note(std::size_t i, double waited) const {
    const MachineSpeeds& speeds = options_.speeds;
    double seconds = 0;
    if (places_[i] == kFromDisk)
      seconds = blocks_[i].num_bytes_fetched / speeds.disk_bytes_per_second;
    if (limits_.has_accelerator)
      seconds = std::max(
          seconds, blocks_[i].num_bytes_fetched / speeds.link_bytes_per_second);
    if (waited <= 0)
      return format(
          "fetched in {} while blocks before it compute",
          seconds_text(seconds));
    return format(
        "fetched in {}, of which the forward waits {}",
        seconds_text(seconds),
        seconds_text(waited));
  }

  std::vector<DeviceUse> uses() const {
    const double buffers = 2 * largest_fetched(blocks_, places_);
    std::vector<DeviceUse> list;
    const auto add = [&](const MapDevice& device, double reserved) {
      DeviceUse use{device, std::nullopt, 0, reserved};
      for (const auto& [limited, size] : options_.max_memory) {
        if (limited == device && !device.is_disk())
          use.max_memory = size.bytes();
      }
      for (std::size_t i = 0; i < blocks_.size(); ++i) {
        if (device_of(places_[i]) == device)
          use.num_bytes += blocks_[i].num_bytes;
      }
      if (use.num_bytes > 0 || reserved > 0) list.push_back(use);
    };
    for (std::size_t i = 0; i < accelerators_.size(); ++i)
      add(accelerators_[i], i == 0 ? buffers : 0);
    if (limits_.has_accelerator) add("cpu", limits_.host ? buffers : 0);
    add("disk", 0);
    return list;
  }

  const std::vector<PlanBlock>& blocks_;
  const std::vector<BlockPlace>& places_;
  const PlanDeviceMapOptions& options_;
  const PlanLimits& limits_;
  std::vector<MapDevice> accelerators_;
};

}  // namespace

std::vector<PlanBlock> plan_blocks(
    const ModuleNode& root,
    const PlanDeviceMapOptions& options) {
  require_speeds(options);
  const SizedTree tree(
      root,
      {options.dtype, options.special_dtypes},
      options.no_split_module_classes);
  std::map<std::string, double> known(
      options.block_seconds.begin(), options.block_seconds.end());
  std::vector<int> nodes;
  add_block_nodes(tree, 0, nodes);
  std::vector<PlanBlock> blocks;
  for (const int node : nodes) {
    const double bytes = tree[node].num_bytes_with_ties;
    const double operations =
        2 * tree[node].num_elements * static_cast<double>(options.num_tokens);
    PlanBlock block{tree.name_of(node), tree[node].num_bytes, bytes};
    const auto measured = known.find(block.name);
    block.seconds = measured != known.end()
        ? measured->second
        : std::max(
              operations / options.speeds.flops_per_second,
              bytes / options.speeds.memory_bytes_per_second);
    blocks.push_back(std::move(block));
  }
  number_ties(tree, nodes, blocks);
  return blocks;
}

PlanLimits plan_limits(const MaxMemory& max_memory) {
  PlanLimits limits;
  std::optional<double> host;
  for (const auto& [device, size] : max_memory) {
    const auto bytes = static_cast<double>(size.bytes());
    if (device.is_accelerator()) limits.devices.push_back(bytes);
    if (device.is_cpu()) host = bytes;
  }
  limits.has_accelerator = !limits.devices.empty();
  if (limits.has_accelerator) {
    limits.host = host;
  } else {
    limits.devices.push_back(host.value_or(0));
  }
  return limits;
}

PlannedDeviceMap plan_map(
    const ModuleNode& root,
    const PlanDeviceMapOptions& options) {
  const std::vector<PlanBlock> blocks = plan_blocks(root, options);
  const PlanLimits limits = plan_limits(options.max_memory);
  const auto places = find_places(blocks, limits, options.speeds);
  if (!places) {
    double largest = 0;
    for (const PlanBlock& block : blocks)
      largest = std::max(largest, block.num_bytes_fetched);
    throw ConfigError(format(
        "[big_model] no placement of the model's blocks fits into memory: "
        "fetching its largest block while another one computes takes {} on the "
        "first device{}; raise max_memory, or name smaller blocks in "
        "no_split_module_classes",
        format_size(2 * largest),
        limits.has_accelerator ? " and in host memory" : ""));
  }
  return PlanReport(blocks, *places, options, limits).planned();
}

}  // namespace accelerate::detail
