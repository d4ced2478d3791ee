#include "comm/transport/handshake.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/rendezvous/store.h"

namespace accelerate::detail {

Handshake::Handshake(const ConnectRequest& request, const std::string& purpose)
    : request_(request),
      store_(c10::make_intrusive<c10d::PrefixStore>(purpose, request.store)) {}

void Handshake::publish(const std::string& key, const std::string& value) {
  store_->set(key, value);
}

std::string Handshake::ask(const std::string& key, int rank) {
  if (wait_for_key(*store_, key, request_.timeout))
    return store_->get_to_str(key);
  throw DistributedError(format(
      "[comm] rank {} is gone or stuck while the ranks "
      "of group \"{}\" connect",
      request_.world_ranks[static_cast<std::size_t>(rank)],
      request_.name));
}

std::vector<std::string> Handshake::exchange(
    const std::string& key,
    const std::string& value) {
  publish(format("{}/{}", key, request_.rank), value);
  std::vector<std::string> all;
  for (std::size_t peer = 0; peer < request_.world_ranks.size(); ++peer)
    all.push_back(ask(format("{}/{}", key, peer), static_cast<int>(peer)));
  return all;
}

}  // namespace accelerate::detail
