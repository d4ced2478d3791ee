#include "comm/transport/transport.h"

#include <algorithm>
#include <string_view>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void throw_no_messages(const Connection& connection) {
  throw ConfigError(format(
      "[comm] the transport \"{}\" sends no messages from rank to rank",
      connection.facts().name));
}

}  // namespace

bool TransportFacts::has_device(c10::DeviceType device) const {
  return std::find(device_types.begin(), device_types.end(), device) !=
      device_types.end();
}

Work Connection::send(const at::Tensor&, int, int) { throw_no_messages(*this); }

Work Connection::receive(const at::Tensor&, int, int) {
  throw_no_messages(*this);
}

std::string first_line_of(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace accelerate::detail
