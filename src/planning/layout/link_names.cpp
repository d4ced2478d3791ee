#include <accelerate/planning.h>

#include <array>
#include <string>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

namespace {

struct NamedLink {
  std::string_view name;
  /// One direction, by the data sheet.
  double peak_bytes_per_second;
  /// What large collectives reach of it.
  double reached;
  double latency_seconds;
};

// NVLink: 12, 18 and 18 links of a GPU; PCIe: 16 lanes; InfiniBand: a port of
// 4 lanes per GPU.
constexpr std::array<NamedLink, 8> kNamedLinks{
    {{"nvlink3", 300e9, 0.8, 3e-6},
     {"nvlink4", 450e9, 0.8, 3e-6},
     {"nvlink5", 900e9, 0.8, 3e-6},
     {"pcie4", 31.5e9, 0.8, 5e-6},
     {"pcie5", 63e9, 0.8, 5e-6},
     {"hdr", 25e9, 0.9, 8e-6},
     {"ndr", 50e9, 0.9, 8e-6},
     {"xdr", 100e9, 0.9, 8e-6}}};

}  // namespace

LinkSpeed link_named(std::string_view name) {
  std::vector<std::string> names;
  for (const NamedLink& link : kNamedLinks) {
    if (link.name == name) {
      return {link.latency_seconds, link.reached * link.peak_bytes_per_second};
    }
    names.emplace_back(link.name);
  }
  throw ConfigError(detail::format(
      "[planning] the link must be one of {}, but is \"{}\"",
      detail::join(names, ", "),
      detail::printable(name)));
}

}  // namespace accelerate
