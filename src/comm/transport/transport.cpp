#include "comm/transport/transport.h"

#include <algorithm>
#include <string_view>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void throw_no_p2p(const Connection& connection) {
  throw ConfigError(format(
      "[comm] the transport \"{}\" has no point-to-point messages",
      connection.facts().name));
}

}  // namespace

bool TransportFacts::has_device(c10::DeviceType device) const {
  return std::find(device_types.begin(), device_types.end(), device) !=
      device_types.end();
}

Work Connection::send(const at::Tensor&, int, int) { throw_no_p2p(*this); }

Work Connection::receive(const at::Tensor&, int, int) { throw_no_p2p(*this); }

std::string first_line_of(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace accelerate::detail
