#include <accelerate/device_map.h>

#include <algorithm>
#include <unordered_set>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

// The index after the colon in "cuda:1", or the text itself as an index.
std::optional<int> index_in(const std::string& text) {
  const std::size_t colon = text.find(':');
  const bool has_type = colon != std::string::npos && colon > 0;
  const auto index = detail::parse_int(
      has_type ? std::string_view(text).substr(colon + 1)
               : std::string_view(text));
  if (!index || *index < 0 || *index > 32767) return std::nullopt;
  return static_cast<int>(*index);
}

std::vector<Placement> placements_of(
    const std::pair<std::string, MapDevice>* begin,
    std::size_t size) {
  std::unordered_set<std::string> names;
  std::vector<Placement> list;
  for (std::size_t i = 0; i < size; ++i) {
    const auto& [name, device] = begin[i];
    if (!names.insert(name).second) {
      throw ConfigError(detail::format(
          "[big_model] the device map has \"{}\" twice; "
          "give each module one place",
          detail::printable(name)));
    }
    list.push_back({name, device});
  }
  return list;
}

}  // namespace

MapDevice::MapDevice(int index) : kind_(Kind::device), index_(index) {
  if (index < 0) {
    throw ConfigError(detail::format(
        "[big_model] the index of a device must be at least 0, but is {}",
        index));
  }
}

MapDevice::MapDevice(const std::string& name) {
  if (name == "mps" || name == "mps:0") {
    kind_ = Kind::mps;
  } else if (name == "cpu") {
    kind_ = Kind::cpu;
  } else if (name == "disk") {
    kind_ = Kind::disk;
  } else if (name == "meta") {
    kind_ = Kind::meta;
  } else if (const auto index = index_in(name)) {
    kind_ = Kind::device;
    index_ = *index;
  } else {
    throw ConfigError(detail::format(
        "[big_model] a place for weights must be the index of a device, or "
        "mps, cpu, disk or meta, but is \"{}\"",
        detail::printable(name)));
  }
}

std::optional<int> MapDevice::index() const {
  return kind_ == Kind::device ? std::optional(index_) : std::nullopt;
}

std::string MapDevice::name() const {
  switch (kind_) {
    case Kind::device:
      return std::to_string(index_);
    case Kind::mps:
      return "mps";
    case Kind::cpu:
      return "cpu";
    case Kind::disk:
      return "disk";
    case Kind::meta:
      break;
  }
  return "meta";
}

DeviceMap::DeviceMap() = default;

DeviceMap::DeviceMap(const DeviceMap& other) = default;

DeviceMap::DeviceMap(DeviceMap&& other) noexcept = default;

DeviceMap& DeviceMap::operator=(const DeviceMap& other) = default;

DeviceMap& DeviceMap::operator=(DeviceMap&& other) noexcept = default;

DeviceMap::~DeviceMap() = default;

DeviceMap::DeviceMap(
    std::initializer_list<std::pair<std::string, MapDevice>> entries)
    : placements_(placements_of(entries.begin(), entries.size())) {}

DeviceMap::DeviceMap(
    const std::vector<std::pair<std::string, MapDevice>>& entries)
    : placements_(placements_of(entries.data(), entries.size())) {}

DeviceMap::DeviceMap(
    std::vector<Placement> placements,
    std::vector<DeviceUse> devices,
    std::vector<std::string> warnings)
    : placements_(std::move(placements)),
      devices_(std::move(devices)),
      warnings_(std::move(warnings)) {}

std::vector<MapDevice> DeviceMap::places() const {
  std::vector<MapDevice> list;
  for (const Placement& each : placements_) {
    if (std::ranges::find(list, each.device) == list.end())
      list.push_back(each.device);
  }
  return list;
}

std::optional<MapDevice> DeviceMap::find(std::string_view name) const {
  for (const Placement& each : placements_) {
    if (each.name == name) return each.device;
  }
  return std::nullopt;
}

std::optional<MapDevice> DeviceMap::device_of(std::string_view name) const {
  const Placement* best = nullptr;
  for (const Placement& each : placements_) {
    const bool is_inside = each.name.empty() || name == each.name ||
        (name.starts_with(each.name) && name[each.name.size()] == '.');
    if (is_inside && (!best || each.name.size() >= best->name.size()))
      best = &each;
  }
  return best ? std::optional(best->device) : std::nullopt;
}

bool DeviceMap::operator==(const DeviceMap& other) const {
  return std::ranges::equal(
      placements_,
      other.placements_,
      [](const Placement& a, const Placement& b) {
        return a.name == b.name && a.device == b.device;
      });
}

}  // namespace accelerate
