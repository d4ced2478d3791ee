#include "comm/transport/transport.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/transport/works.h"

namespace accelerate::detail {

namespace {

[[noreturn]] void throw_no_p2p(const Connection& connection) {
  throw ConfigError(format(
      "[comm] the transport \"{}\" has no point-to-point messages",
      connection.facts().name));
}

}  // namespace

bool TransportFacts::has_device(c10::DeviceType device) const {
  return std::ranges::find(device_types, device) != device_types.end();
}

Work Connection::send(const at::Tensor&, int, int) { throw_no_p2p(*this); }

Work Connection::receive(const at::Tensor&, int, int) { throw_no_p2p(*this); }

BegunMessages Connection::begin_each(
    const std::vector<PeerMessage>& sends,
    const std::vector<PeerMessage>& receives) {
  std::vector<Work> receiving, sending;
  std::exception_ptr failure;
  try {
    for (const PeerMessage& each : receives)
      receiving.push_back(receive(each.tensor, each.peer, each.tag));
    for (const PeerMessage& each : sends)
      sending.push_back(send(each.tensor, each.peer, each.tag));
  } catch (...) {
    failure = std::current_exception();
  }
  return {
      all_of(std::move(receiving), failure),
      all_of(std::move(sending), failure)};
}

std::string first_line_of(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace accelerate::detail
