#include "cli/store/store_client.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/machine/network.h"
#include "base/text/text.h"
#include "config/rank_variables.h"
#include "launch/store_protocol.h"

namespace accelerate::cli {

namespace {

using detail::format;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Returns a connection, or -1 with the reason in `problem`.
int try_connect(const std::string& address, int port, std::string& problem) {
  const detail::Addresses found(address, port);
  problem = found.problem();
  for (const addrinfo* each = found.first(); each != nullptr;
       each = each->ai_next) {
    const int socket =
        ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    if (::connect(socket, each->ai_addr, each->ai_addrlen) == 0) return socket;
    problem = std::strerror(errno);
    ::close(socket);
  }
  return -1;
}

class Message {
 public:
  explicit Message(detail::StoreQuery query) { value(query); }
  template <class T>
  Message& value(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Message& text(const std::string& text) {
    value(static_cast<std::uint64_t>(text.size()));
    bytes_ += text;
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace

StoreClient::StoreClient(
    const std::string& address,
    int port,
    milliseconds patience,
    const std::function<void(const std::string& problem)>& between)
    : peer_(format("{}:{}", address, port)) {
  const auto deadline = steady_clock::now() + patience;
  std::string problem;
  for (milliseconds pause(2);; pause = std::min(pause * 2, milliseconds(200))) {
    socket_ = try_connect(address, port, problem);
    if (socket_ >= 0) break;
    if (steady_clock::now() >= deadline) {
      throw DistributedError(format(
          "[launch] cannot connect to {} ({}); is the launcher of machine 0 "
          "running there, and can this machine reach it?",
          peer_,
          problem));
    }
    if (between) between(problem);
    std::this_thread::sleep_for(pause);
  }
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // Keepalive detects a peer that vanished without closing the connection.
  ::setsockopt(socket_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  const int idle = 5, interval = 3, count = 3;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket_, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket_, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  // TCP_USER_TIMEOUT fails fast if the connection is lost while a request is in
  // flight.
  const unsigned user_timeout_ms = 15000;
  ::setsockopt(
      socket_,
      IPPROTO_TCP,
      TCP_USER_TIMEOUT,
      &user_timeout_ms,
      sizeof user_timeout_ms);
  send(
      Message(detail::StoreQuery::validate).value(detail::kStoreMagic).bytes());
}

StoreClient::~StoreClient() { ::close(socket_); }

std::string StoreClient::join(
    int machine,
    const std::string& given,
    milliseconds patience,
    const std::function<void()>& between) {
  constexpr milliseconds kPause{100};
  const auto deadline = steady_clock::now() + patience;
  auto answer = detail::StoreJoinAnswer::admitted;
  std::string secret;
  while (true) {
    send(Message(detail::StoreQuery::join)
             .value(static_cast<std::uint32_t>(machine))
             .text(given)
             .bytes());
    receive(&answer, sizeof answer);
    secret = receive_text();
    if (answer != detail::StoreJoinAnswer::machine_taken ||
        steady_clock::now() >= deadline)
      break;
    if (between) between();
    std::this_thread::sleep_for(kPause);
  }
  if (answer == detail::StoreJoinAnswer::wrong_secret) {
    throw ConfigError(format(
        "[launch] the launcher of machine 0 at {} has a different {}; set it "
        "to the same value for the launchers of all machines, or for none",
        peer_,
        detail::kStoreSecretVariable));
  }
  if (answer == detail::StoreJoinAnswer::machine_taken) {
    throw ConfigError(format(
        "[launch] another launcher has joined {} as machine {}; give every "
        "machine its own --machine_rank, and every launch its own "
        "--main_process_port. If there is no such launcher, another program on "
        "the network joined first: set {} for all launchers",
        peer_,
        machine,
        detail::kStoreSecretVariable));
  }
  show_secret(secret);
  return secret;
}

void StoreClient::show_secret(const std::string& secret) {
  prefix_ = format("/{}/", secret);
}

void StoreClient::set(const std::string& key, const std::string& value) {
  send(Message(detail::StoreQuery::set).text(key_of(key)).text(value).bytes());
}

std::string StoreClient::get(const std::string& key) {
  send(Message(detail::StoreQuery::get).text(key_of(key)).bytes());
  return receive_text();
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t value) {
  send(Message(detail::StoreQuery::add).text(key_of(key)).value(value).bytes());
  std::int64_t now = 0;
  receive(&now, sizeof now);
  return now;
}

std::string StoreClient::set_once(
    const std::string& key,
    const std::string& value) {
  send(Message(detail::StoreQuery::compare_set)
           .text(key_of(key))
           .text("")
           .text(value)
           .bytes());
  return receive_text();
}

std::string StoreClient::own_address() const {
  return detail::own_address(socket_);
}

void StoreClient::send(const std::string& bytes) {
  if (!detail::send_all(socket_, bytes.data(), bytes.size())) lose();
}

void StoreClient::receive(void* destination, std::size_t size) {
  if (!detail::receive_all(socket_, destination, size)) lose();
}

void StoreClient::lose() const {
  throw DistributedError(
      format("[launch] the connection to {} was lost", peer_));
}

std::string StoreClient::receive_text() {
  std::uint64_t size = 0;
  receive(&size, sizeof size);
  if (size > detail::StoreLimits().max_message_bytes) lose();
  std::string text(size, '\0');
  receive(text.data(), text.size());
  return text;
}

}  // namespace accelerate::cli
