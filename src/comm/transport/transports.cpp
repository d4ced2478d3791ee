#include "comm/transport/transports.h"

#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/transport/automatic_transport.h"
#include "comm/transport/gloo/gloo_transport.h"
#include "comm/transport/nccl/device_transport.h"
#include "comm/transport/shared_memory/shared_memory_transport.h"

namespace accelerate::detail {

namespace {

constexpr TransportRow kTransports[] = {
    {.name = "automatic",
     .is_available = [] { return true; },
     .make =
         [](const TransportSettings& settings) {
           return with_nccl(
               make_automatic_transport(settings),
               settings,
               NcclUse::if_possible);
         }},
    {.name = "shared_memory",
     .is_available = [] { return true; },
     .make = &make_shared_memory_transport},
    {.name = "gloo",
     .is_available = [] { return true; },
     .make = &make_gloo_transport},
    {.name = "nccl",
     .is_available = [] { return true; },
     .make =
         [](const TransportSettings& settings) {
           return with_nccl(
               make_automatic_transport(settings), settings, NcclUse::required);
         }},
};

}  // namespace

std::span<const TransportRow> transports() { return kTransports; }

const TransportRow& choose_transport(const std::optional<std::string>& name) {
  std::vector<std::string> names;
  for (const TransportRow& row : kTransports) {
    if (row.is_available()) names.emplace_back(row.name);
    if (name ? row.name == *name && row.is_available() : row.is_available())
      return row;
  }
  throw ConfigError(format(
      "[comm] the transport \"{}\" is not available in this build or on this "
      "machine; use {}",
      name.value_or(""),
      join(names, ", ")));
}

}  // namespace accelerate::detail
