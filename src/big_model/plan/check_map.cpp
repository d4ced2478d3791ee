#include "big_model/plan/check_map.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::size_t kMostNamesShown = 10;

std::string names_text(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kMostNamesShown);
  std::vector<std::string> list;
  for (std::size_t i = 0; i < shown; ++i) list.push_back(printable(names[i]));
  std::string text = join(list, ", ");
  if (shown < names.size())
    text += format(" and {} more", names.size() - shown);
  return text;
}

class MapCheck {
 public:
  MapCheck(const ModuleNode& root, const DeviceMap& map) {
    for (const Placement& each : map.placements()) {
      is_known_.emplace(each.name, false);
      sorted_.push_back(each.name);
    }
    std::ranges::sort(sorted_);
    std::string name;
    visit(root, name, false);
    for (const Placement& each : map.placements()) {
      if (!is_known_.at(each.name)) complaints_.unknown.push_back(each.name);
    }
  }

  DeviceMapComplaints complaints() && { return std::move(complaints_); }

 private:
  // Returns whether the map has an entry for exactly this name.
  bool note(const std::string& name) {
    const auto found = is_known_.find(name);
    if (found == is_known_.end()) return false;
    return found->second = true;
  }

  // Whether the map has entries below a module.
  [[nodiscard]] bool has_entries_below(std::string_view prefix) const {
    const auto first = std::lower_bound(sorted_.begin(), sorted_.end(), prefix);
    return first != sorted_.end() && first->starts_with(prefix);
  }

  void visit(const ModuleNode& module, std::string& name, bool has_place) {
    has_place = note(name) || has_place;
    const std::size_t own_size = name.size();
    if (own_size > 0) name += '.';
    const std::size_t size = name.size();
    const auto visit_tensors = [&](const std::vector<ModuleTensor>& tensors) {
      for (const ModuleTensor& tensor : tensors) {
        name += tensor.name;
        const bool has_own = note(name);
        if (!has_own && !has_place && tensor.is_persistent)
          complaints_.missing.push_back(name);
        name.resize(size);
      }
    };
    // With thousands of entries in a map, most modules need not be entered.
    if (!has_place || has_entries_below(name)) {
      visit_tensors(module.parameters);
      visit_tensors(module.buffers);
      for (const ModuleNode& child : module.children) {
        name += child.name;
        visit(child, name, has_place);
        name.resize(size);
      }
    }
    name.resize(own_size);
  }

  std::unordered_map<std::string, bool> is_known_;
  std::vector<std::string_view> sorted_;
  DeviceMapComplaints complaints_;
};

void collect_buffer_sizes(
    const ModuleNode& module,
    const std::string& name,
    std::map<std::string, double>& sizes) {
  for (const ModuleTensor& buffer : module.buffers) {
    sizes.emplace(
        dotted_name(name, buffer.name), static_cast<double>(buffer.num_bytes));
  }
  for (const ModuleNode& child : module.children)
    collect_buffer_sizes(child, dotted_name(name, child.name), sizes);
}

bool has_room(const DeviceUse& use, double num_bytes) {
  return !use.max_memory ||
      use.num_bytes + use.num_bytes_reserved + num_bytes <=
      static_cast<double>(*use.max_memory);
}

}  // namespace

DeviceMapComplaints find_complaints(
    const ModuleNode& root,
    const DeviceMap& map) {
  return MapCheck(root, map).complaints();
}

std::string require_complete_map(const ModuleNode& root, const DeviceMap& map) {
  const DeviceMapComplaints complaints = find_complaints(root, map);
  if (!complaints.missing.empty()) {
    throw ConfigError(format(
        "[big_model] the device map gives no place to {}; add them, or a "
        "module that holds them, or \"\" for all others",
        names_text(complaints.missing)));
  }
  if (complaints.unknown.empty()) return "";
  return format(
      "the device map has entries that are not modules of the model: {}",
      names_text(complaints.unknown));
}

DeviceMap complete_device_map(const ModuleNode& root, const DeviceMap& map) {
  const std::vector<std::string> missing = find_complaints(root, map).missing;
  if (missing.empty()) return map;
  std::map<std::string, double> sizes;
  collect_buffer_sizes(root, "", sizes);
  std::vector<Placement> placements = map.placements();
  std::vector<DeviceUse> uses = map.devices();
  const auto use_of = [&](const MapDevice& device) {
    return std::ranges::find(uses, device, &DeviceUse::device);
  };
  for (const std::string& name : missing) {
    const auto size = sizes.find(name);
    if (size == sizes.end()) continue;
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    const Placement* chosen = nullptr;
    for (const Placement& each : map.placements()) {
      if (!each.name.starts_with(prefix)) continue;
      chosen = &each;
      const auto use = use_of(each.device);
      if (use != uses.end() && has_room(*use, size->second)) break;
    }
    if (chosen == nullptr) continue;
    const auto use = use_of(chosen->device);
    Placement placement{name, chosen->device, PlacementReason::fits};
    placement.num_bytes = size->second;
    if (use != uses.end()) {
      placement.num_bytes_used = use->num_bytes;
      use->num_bytes += size->second;
    }
    placements.push_back(std::move(placement));
  }
  return DeviceMap(std::move(placements), std::move(uses), map.warnings());
}

}  // namespace accelerate::detail
