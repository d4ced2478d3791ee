#include <accelerate/device_map.h>

#include <map>
#include <memory>

namespace accelerate {

namespace {

// A part of a dotted name, and a map's entries at and below it.
struct NamePart {
  int entry = -1;  // the entry with exactly this name
  int first = -1;  // the earliest
  int num_entries = 0;
  bool has_one_device = true;
  std::map<std::string_view, std::unique_ptr<NamePart>> parts;
};

class Cleaning {
 public:
  explicit Cleaning(const DeviceMap& map) : placements_(map.placements()) {
    for (std::size_t i = 0; i < placements_.size(); ++i)
      add(static_cast<int>(i));
  }

  std::vector<Placement> run(std::string_view below) {
    NamePart* start = &root_;
    std::string_view rest = below;
    while (start && !rest.empty()) start = part(*start, next_part(rest));
    if (start) clean(*start, std::string(below));
    // Entries elsewhere stay as they are.
    for (std::size_t i = 0; i < placements_.size(); ++i) {
      if (!is_done_[i]) cleaned_.emplace(static_cast<int>(i), placements_[i]);
    }
    std::vector<Placement> list;
    for (auto& [place, placement] : cleaned_)
      list.push_back(std::move(placement));
    return list;
  }

 private:
  const Placement& at(int entry) const {
    return placements_[static_cast<std::size_t>(entry)];
  }

  // Removes and returns the part of `rest` before its first dot.
  static std::string_view next_part(std::string_view& rest) {
    const std::size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    rest.remove_prefix(dot == rest.npos ? rest.size() : dot + 1);
    return part;
  }

  static NamePart* part(NamePart& of, std::string_view name) {
    const auto found = of.parts.find(name);
    return found == of.parts.end() ? nullptr : found->second.get();
  }

  void count(NamePart& part, int entry) {
    if (part.first < 0) part.first = entry;
    ++part.num_entries;
    if (at(part.first).device != at(entry).device) part.has_one_device = false;
  }

  void add(int entry) {
    is_done_.push_back(false);
    NamePart* here = &root_;
    count(*here, entry);
    std::string_view rest = at(entry).name;
    while (!rest.empty()) {
      std::unique_ptr<NamePart>& next = here->parts[next_part(rest)];
      if (!next) next = std::make_unique<NamePart>();
      here = next.get();
      count(*here, entry);
    }
    here->entry = entry;
  }

  void clean(const NamePart& part, const std::string& name) {
    if (part.num_entries > 1 && part.has_one_device) {
      Placement merged = at(part.first);
      merged.name = name;
      merged.num_bytes = 0;
      merge(part, merged);
      cleaned_.emplace(part.first, std::move(merged));
      return;
    }
    if (part.entry >= 0) {
      cleaned_.emplace(part.entry, at(part.entry));
      is_done_[static_cast<std::size_t>(part.entry)] = true;
    }
    for (const auto& [child_name, child] : part.parts) {
      std::string full = name;
      if (!full.empty()) full += '.';
      clean(*child, full.append(child_name));
    }
  }

  void merge(const NamePart& part, Placement& merged) {
    if (part.entry >= 0) {
      const Placement& own = at(part.entry);
      is_done_[static_cast<std::size_t>(part.entry)] = true;
      merged.num_bytes = own.num_bytes < 0 || merged.num_bytes < 0
          ? -1
          : merged.num_bytes + own.num_bytes;
      if (own.note != merged.note) merged.note.clear();
      if (own.reason != merged.reason && own.reason != PlacementReason::tied)
        merged.reason = PlacementReason::fits;
    }
    for (const auto& [name, child] : part.parts) merge(*child, merged);
  }

  const std::vector<Placement>& placements_;
  NamePart root_;
  std::vector<bool> is_done_;
  // Keyed by the position of the earliest entry that each one stands for.
  std::map<int, Placement> cleaned_;
};

}  // namespace

DeviceMap clean_device_map(
    const DeviceMap& map,
    const std::string& module_name) {
  return DeviceMap(
      Cleaning(map).run(module_name), map.devices(), map.warnings());
}

}  // namespace accelerate
