#include "comm/rendezvous/hosted_store.h"

#include <map>
#include <memory>
#include <mutex>

#include "comm/rendezvous/store.h"

namespace accelerate::detail {

namespace {

// A process can listen on a port only once, however many Worlds it creates.
struct HostedStores {
  std::mutex mutex;
  std::map<int, Store> by_port;
};

HostedStores& hosted_stores() {
  static HostedStores stores;
  return stores;
}

}  // namespace

Store hosted_store(
    const std::string& host,
    int port,
    std::chrono::milliseconds timeout) {
  if (port == 0) return Store::tcp(host, port, true, timeout);
  HostedStores& stores = hosted_stores();
  const std::lock_guard lock(stores.mutex);
  auto found = stores.by_port.find(port);
  if (found == stores.by_port.end()) {
    found = stores.by_port.emplace(port, Store::tcp(host, port, true, timeout))
                .first;
  }
  auto client = own_client(found->second);
  client->setTimeout(timeout);
  return Store(std::make_shared<StoreImpl>(StoreImpl{std::move(client), port}));
}

}  // namespace accelerate::detail
