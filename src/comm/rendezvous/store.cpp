#include "comm/rendezvous/store.h"

#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/rendezvous/tcp_store.h"
#include "launch/store_server.h"

namespace accelerate {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// An address that no other machine can reach.
bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

template <class Body>
auto guarded(const char* what, const std::string& key, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    throw DistributedError(detail::format(
        "[comm] the store could not {} \"{}\": {}",
        what,
        key,
        detail::split(error.what(), '\n').front()));
  }
}

}  // namespace

Store::Store(std::shared_ptr<detail::StoreImpl> impl)
    : impl_(std::move(impl)) {}

Store Store::tcp(
    const std::string& host,
    int port,
    bool is_server,
    milliseconds timeout) {
  std::shared_ptr<detail::StoreServer> server;
  std::string address = host;
  if (is_server) {
    const bool is_open = !is_loopback(host);
    server = std::make_shared<detail::StoreServer>(
        host, port, detail::StoreServerOptions{.is_open = is_open});
    port = server->port();
    // On some networks, a machine cannot reach itself by its external address.
    if (is_open) address = "localhost";
  }
  return Store(std::make_shared<detail::StoreImpl>(detail::StoreImpl{
      c10::make_intrusive<detail::TcpStore>(
          address, port, timeout, std::move(server)),
      port}));
}

Store Store::file(const std::string& path, int num_ranks) {
  return Store(std::make_shared<detail::StoreImpl>(detail::StoreImpl{
      c10::make_intrusive<c10d::FileStore>(path, num_ranks), 0}));
}

Store Store::in_memory() {
  return Store(std::make_shared<detail::StoreImpl>(
      detail::StoreImpl{c10::make_intrusive<c10d::HashStore>(), 0}));
}

void Store::set(const std::string& key, std::string_view value) const {
  guarded("set", key, [&] { impl_->store->set(key, std::string(value)); });
}

std::string Store::get(const std::string& key) const {
  return guarded("get", key, [&] { return impl_->store->get_to_str(key); });
}

bool Store::has(const std::string& key) const {
  return guarded("look up", key, [&] { return impl_->store->check({key}); });
}

std::int64_t Store::add(const std::string& key, std::int64_t amount) const {
  return guarded("add to", key, [&] { return impl_->store->add(key, amount); });
}

Store Store::with_prefix(const std::string& prefix) const {
  return Store(std::make_shared<detail::StoreImpl>(detail::StoreImpl{
      c10::make_intrusive<c10d::PrefixStore>(prefix, impl_->store),
      impl_->port}));
}

int Store::port() const { return impl_->port; }

namespace detail {

c10::intrusive_ptr<c10d::Store> own_client(const Store& store) {
  auto client = store.impl()->store->clone();
  // A first request shows the launcher's store the secret in the prefix: under
  // pressure, the store closes connections that have not shown it.
  client->check({"introduction"});
  return client;
}

bool wait_for_key(
    c10d::Store& store,
    const std::string& key,
    milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  milliseconds pause{1};
  while (!store.check({key})) {
    if (steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(20));
  }
  return true;
}

}  // namespace detail
}  // namespace accelerate
