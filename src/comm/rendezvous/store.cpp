#include "comm/rendezvous/store.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include <torch/csrc/distributed/c10d/exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// True if a process listens there.
bool try_connect(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(
          host.c_str(), std::to_string(port).c_str(), &hints, &list) != 0)
    return false;
  bool connected = false;
  for (const addrinfo* entry = list; entry != nullptr && !connected;
       entry = entry->ai_next) {
    const int fd =
        ::socket(entry->ai_family, entry->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    connected = ::connect(fd, entry->ai_addr, entry->ai_addrlen) == 0;
    ::close(fd);
  }
  ::freeaddrinfo(list);
  return connected;
}

// LibTorch's client backs off for up to seconds between attempts, but rank 0
// usually listens within milliseconds.
void wait_for_server(const std::string& host, int port, milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  milliseconds pause{1};
  while (!try_connect(host, port)) {
    if (steady_clock::now() >= deadline) {
      throw DistributedError(detail::format(
          "[comm] no process listens at {}:{} after {} s; is rank 0 running, "
          "and is main_process_ip its address?",
          host,
          port,
          std::chrono::duration<double>(timeout).count()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, milliseconds(50));
  }
}

c10::intrusive_ptr<c10d::TCPStore> make_tcp_store(
    const std::string& host,
    c10d::TCPStoreOptions options) {
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const c10::DistStoreError& error) {
    // Builds without libuv, such as Debian's.
    if (std::string_view(error.what()).find("libuv") == std::string_view::npos)
      throw;
  }
  options.useLibUV = false;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

template <class Body>
auto guarded(const char* what, const std::string& key, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::exception& error) {
    throw DistributedError(detail::format(
        "[comm] the store could not {} \"{}\": {}", what, key, error.what()));
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
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = is_server;
  options.waitWorkers = false;
  options.timeout = timeout;
  if (!is_server) wait_for_server(host, port, timeout);
  try {
    auto store = make_tcp_store(host, options);
    const int bound = store->getPort();
    return Store(std::make_shared<detail::StoreImpl>(
        detail::StoreImpl{std::move(store), bound}));
  } catch (const c10d::SocketError& error) {
    throw ConfigError(detail::format(
        "[comm] rank 0 cannot listen at port {} of {}: the port is taken, or "
        "the address is not this machine's; choose another main_process_port, "
        "or 0 for a free one ({})",
        port,
        host,
        error.what_without_backtrace()));
  } catch (const c10::DistError& error) {
    throw DistributedError(detail::format(
        "[comm] cannot connect to the store at {}:{}: {}",
        host,
        port,
        error.what_without_backtrace()));
  }
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
  // pressure it closes connections that have not.
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
