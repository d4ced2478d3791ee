#include "launch/store_server.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/network.h"
#include "base/text.h"
#include "launch/store_protocol.h"

namespace accelerate::detail {

namespace {

// Limits beyond which a message cannot be ours.
constexpr std::uint64_t kMostBytes = 1ULL << 30U;
constexpr std::uint64_t kMostKeys = 1ULL << 20U;

/// Thrown if a message has not arrived completely.
struct Incomplete {};
/// Thrown if a client does not speak the protocol.
struct ProtocolError {};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T value() {
    T out;
    if (rest_.size() < sizeof out) throw Incomplete();
    std::memcpy(&out, rest_.data(), sizeof out);
    rest_.remove_prefix(sizeof out);
    return out;
  }
  std::string text() {
    const auto size = value<std::uint64_t>();
    if (size > kMostBytes) throw ProtocolError();
    if (rest_.size() < size) throw Incomplete();
    std::string out(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return out;
  }
  std::vector<std::string> strings(std::uint64_t times = 1) {
    const auto count = value<std::uint64_t>();
    if (count > kMostKeys) throw ProtocolError();
    std::vector<std::string> out;
    for (std::uint64_t i = 0; i < count * times; ++i) out.push_back(text());
    return out;
  }
  [[nodiscard]] std::size_t left() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

struct Client {
  int socket = -1;
  bool is_valid = false;  // has sent the magic number
  std::string arrived;
  std::string unsent;
  std::vector<std::string> awaited;  // keys it waits for

  template <class T>
  void answer(T value) {
    unsent.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void answer_text(const std::string& text) {
    answer(static_cast<std::uint64_t>(text.size()));
    unsent += text;
  }
};

class Server {
 public:
  Server(int listener, int end) : listener_(listener), end_(end) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    for (const auto& client : clients_) ::close(client->socket);
  }

  void run() {
    while (true) {
      std::vector<pollfd> waits{{end_, POLLIN, 0}, {listener_, POLLIN, 0}};
      for (const auto& client : clients_) {
        const auto events =
            static_cast<short>(POLLIN | (client->unsent.empty() ? 0 : POLLOUT));
        waits.push_back({client->socket, events, 0});
      }
      if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return;
      if (waits[0].revents != 0) return;
      for (std::size_t i = 2; i < waits.size(); ++i) {
        Client& client = *clients_[i - 2];
        if (waits[i].revents != 0 && !serve(client)) drop(client);
      }
      std::erase_if(
          clients_, [](const auto& client) { return client->socket < 0; });
      if (waits[1].revents != 0) accept_one();
    }
  }

 private:
  void accept_one() {
    const int socket =
        ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) return;
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    clients_.push_back(std::make_unique<Client>());
    clients_.back()->socket = socket;
  }

  static void drop(Client& client) {
    ::close(std::exchange(client.socket, -1));
  }

  // Returns false if the client is gone or does not speak the protocol.
  bool serve(Client& client) {
    char block[1U << 16U];
    const ssize_t count = ::recv(client.socket, block, sizeof block, 0);
    if (count == 0) return false;
    if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (count > 0) {
      client.arrived.append(block, static_cast<std::size_t>(count));
      if (!answer_all(client)) return false;
    }
    return send_rest(client);
  }

  bool answer_all(Client& client) {
    std::size_t used = 0;
    try {
      while (used < client.arrived.size()) {
        Reader reader(std::string_view(client.arrived).substr(used));
        answer(client, reader);
        used = client.arrived.size() - reader.left();
      }
    } catch (const Incomplete&) {
    } catch (const ProtocolError&) {
      return false;
    }
    client.arrived.erase(0, used);
    return true;
  }

  static bool send_rest(Client& client) {
    while (!client.unsent.empty()) {
      const ssize_t count = ::send(
          client.socket,
          client.unsent.data(),
          client.unsent.size(),
          MSG_NOSIGNAL);
      if (count < 0) return errno == EAGAIN || errno == EINTR;
      client.unsent.erase(0, static_cast<std::size_t>(count));
    }
    return true;
  }

  // Answers one message. Throws Incomplete before any effect.
  void answer(Client& client, Reader& in) {
    const auto query = in.value<StoreQuery>();
    if (!client.is_valid && query != StoreQuery::validate)
      throw ProtocolError();
    switch (query) {
      case StoreQuery::validate:
        return validate(client, in);
      case StoreQuery::ping:
        return client.answer(in.value<std::uint32_t>());
      case StoreQuery::set:
        return set_one(in);
      case StoreQuery::compare_set:
        return compare_set(client, in);
      case StoreQuery::get:
        return client.answer_text(value_of(in.text()));
      case StoreQuery::add:
        return add(client, in);
      case StoreQuery::check:
        return check(client, in);
      case StoreQuery::wait:
        return wait(client, in);
      case StoreQuery::cancel_wait:
        return cancel_wait(client);
      case StoreQuery::num_keys:
        return client.answer(static_cast<std::int64_t>(values_.size()));
      case StoreQuery::delete_key:
        return client.answer(
            static_cast<std::int64_t>(values_.erase(in.text())));
      case StoreQuery::append:
        return append(in);
      case StoreQuery::multi_get:
        return multi_get(client, in);
      case StoreQuery::multi_set:
        return multi_set(in);
    }
    throw ProtocolError();
  }

  static void validate(Client& client, Reader& in) {
    if (in.value<std::uint32_t>() != kStoreMagic) throw ProtocolError();
    client.is_valid = true;
  }

  void set_one(Reader& in) {
    const std::string key = in.text();
    set(key, in.text());
  }

  void add(Client& client, Reader& in) {
    const std::string key = in.text();
    const auto more = in.value<std::int64_t>();
    const std::int64_t now = parse_int(value_of(key)).value_or(0) + more;
    set(key, std::to_string(now));
    client.answer(now);
  }

  void check(Client& client, Reader& in) const {
    client.answer(
        has_all(in.strings()) ? StoreAnswer::ready : StoreAnswer::not_ready);
  }

  void wait(Client& client, Reader& in) const {
    std::vector<std::string> keys = in.strings();
    if (has_all(keys)) {
      client.answer(StoreAnswer::stop_waiting);
    } else {
      client.awaited = std::move(keys);
    }
  }

  static void cancel_wait(Client& client) {
    client.awaited.clear();
    client.answer(StoreAnswer::wait_canceled);
  }

  void append(Reader& in) {
    const std::string key = in.text();
    const std::string more = in.text();
    set(key, value_of(key) + more);
  }

  void multi_get(Client& client, Reader& in) const {
    for (const std::string& key : in.strings()) {
      client.answer_text(value_of(key));
    }
  }

  void multi_set(Reader& in) {
    std::vector<std::string> pairs = in.strings(2);
    for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
      set(pairs[i], std::move(pairs[i + 1]));
    }
  }

  // As in LibTorch, an empty expected value matches a missing key.
  void compare_set(Client& client, Reader& in) {
    const std::string key = in.text();
    const std::string expected = in.text();
    const std::string desired = in.text();
    const auto found = values_.find(key);
    if (found == values_.end() && !expected.empty()) {
      client.answer_text(expected);
      return;
    }
    if (found == values_.end() || found->second == expected) set(key, desired);
    client.answer_text(value_of(key));
  }

  [[nodiscard]] std::string value_of(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? std::string() : found->second;
  }

  [[nodiscard]] bool has_all(const std::vector<std::string>& keys) const {
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) {
      return values_.contains(key);
    });
  }

  void set(const std::string& key, std::string value) {
    const bool is_new = !values_.contains(key);
    values_.insert_or_assign(key, std::move(value));
    if (!is_new) return;
    for (const auto& client : clients_) {
      if (client->awaited.empty() || !has_all(client->awaited)) continue;
      client->awaited.clear();
      client->answer(StoreAnswer::stop_waiting);
      // If this fails, serve() will notice.
      static_cast<void>(send_rest(*client));
    }
  }

  int listener_;
  int end_;
  std::vector<std::unique_ptr<Client>> clients_;
  std::unordered_map<std::string, std::string> values_;
};

// Returns the socket, or minus the error number.
int listen_at(const addrinfo& where) {
  const int socket =
      ::socket(where.ai_family, where.ai_socktype | SOCK_CLOEXEC, 0);
  if (socket < 0) return -errno;
  const int on = 1, off = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (where.ai_family == AF_INET6) {
    ::setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  }
  if (::bind(socket, where.ai_addr, where.ai_addrlen) == 0 &&
      ::listen(socket, SOMAXCONN) == 0) {
    return socket;
  }
  const int problem = errno;
  ::close(socket);
  return -problem;
}

}  // namespace

StoreServer::StoreServer(const std::string& address, int port, bool is_open) {
  const Addresses found(is_open ? "" : address, port, SOCK_STREAM, AI_PASSIVE);
  if (found.first() == nullptr) {
    throw ConfigError(format(
        "[launch] main_process_ip is \"{}\", which is not an address of "
        "this machine ({}); use 127.0.0.1, or the host name of rank 0",
        address,
        found.problem()));
  }
  int socket = -EADDRNOTAVAIL;
  // Among all interfaces, the IPv6 one also accepts IPv4.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* each = found.first(); each != nullptr && socket < 0;
         each = each->ai_next) {
      if (each->ai_family == family) socket = listen_at(*each);
    }
    if (socket == -EADDRINUSE) break;
  }
  if (socket == -EADDRINUSE) {
    throw ConfigError(format(
        "[launch] port {} of {} is taken by another program; choose another "
        "--main_process_port, or 0 for a free one",
        port,
        address));
  }
  if (socket < 0) {
    throw ConfigError(format(
        "[launch] cannot listen at {} port {}: {}",
        address,
        port,
        std::strerror(-socket)));
  }
  listener_ = socket;
  port_ = own_port(listener_);
  if (::pipe2(end_, O_CLOEXEC) != 0) {
    ::close(listener_);
    throw ConfigError(
        format("[launch] cannot make a pipe: {}", std::strerror(errno)));
  }
  thread_ = std::thread([this] { serve(); });
}

StoreServer::~StoreServer() {
  ::close(end_[1]);
  thread_.join();
  ::close(end_[0]);
  ::close(listener_);
}

void StoreServer::serve() { Server(listener_, end_[0]).run(); }

}  // namespace accelerate::detail
