#include "big_model/plan/check_map.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

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
    std::sort(sorted_.begin(), sorted_.end());
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
    // With thousands of entries in a map, most modules need no look inside.
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

}  // namespace accelerate::detail
