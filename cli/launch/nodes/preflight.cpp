#include "cli/launch/nodes/preflight.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/machine/network.h"
#include "base/text/text.h"
#include "cli/store/store_client.h"

namespace accelerate::cli {

namespace {

using detail::format;
using detail::receive_all;
using detail::send_all;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr std::chrono::seconds kTimeToAnswer{60};
constexpr int kConnectMilliseconds = 5000;
constexpr int kPings = 20;
constexpr std::uint64_t kBytes = 16U << 20U;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Reads messages, each a length followed by that many bytes, and answers each
// with one byte, until the connection ends.
void answer(int socket) {
  std::vector<char> block(1U << 20U);
  std::uint64_t size = 0;
  bool works = receive_all(socket, &size, sizeof size);
  while (works) {
    while (works && size > 0) {
      const std::size_t count = std::min<std::uint64_t>(size, block.size());
      works = receive_all(socket, block.data(), count);
      size -= count;
    }
    const char done = 1;
    works = works && send_all(socket, &done, 1) &&
        receive_all(socket, &size, sizeof size);
  }
  ::close(socket);
}

// Sets timeouts for reads and writes on a connection that may be cut.
void limit_waits(int socket) {
  const timeval patience{20, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

/// Listens on a free port and answers all connections.
class Listener {
 public:
  Listener() {
    socket_ = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    const int off = 0;
    ::setsockopt(socket_, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (socket_ < 0 ||
        ::bind(socket_, reinterpret_cast<sockaddr*>(&any), sizeof any) != 0 ||
        ::listen(socket_, SOMAXCONN) != 0) {
      throw ConfigError(format(
          "[launch] this machine cannot listen on a port: {}",
          std::strerror(errno)));
    }
    port_ = detail::own_port(socket_);
    thread_ = std::thread([this] { serve(); });
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() {
    ends_ = true;
    thread_.join();
    for (std::thread& thread : answering_) thread.join();
    ::close(socket_);
  }
  [[nodiscard]] int port() const { return port_; }

 private:
  void serve() {
    while (!ends_) {
      pollfd wait{socket_, POLLIN, 0};
      if (::poll(&wait, 1, 50) <= 0) continue;
      const int client = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
      if (client < 0) continue;
      limit_waits(client);
      answering_.emplace_back([client] { answer(client); });
    }
  }

  int socket_ = -1;
  int port_ = 0;
  std::atomic<bool> ends_{false};
  std::thread thread_;
  std::vector<std::thread> answering_;
};

// Returns a connection, or minus the error number.
int connect_to(const std::string& address, int port) {
  const detail::Addresses addresses(address, port, SOCK_STREAM, AI_NUMERICHOST);
  const addrinfo* const found = addresses.first();
  if (found == nullptr) return -EINVAL;
  const int socket =
      ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (socket < 0) return -errno;
  int problem = 0;
  if (::connect(socket, found->ai_addr, found->ai_addrlen) != 0) {
    problem = errno;
    if (problem == EINPROGRESS) {
      pollfd wait{socket, POLLOUT, 0};
      problem = ETIMEDOUT;
      if (::poll(&wait, 1, kConnectMilliseconds) > 0) {
        socklen_t length = sizeof problem;
        ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &problem, &length);
      }
    }
  }
  if (problem != 0) {
    ::close(socket);
    return -problem;
  }
  // Makes the socket blocking, with timeouts.
  const int flags = 0, on = 1;
  ::ioctl(socket, FIONBIO, &flags);
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  limit_waits(socket);
  return socket;
}

bool ask(int socket, std::uint64_t size, const std::vector<char>& bytes) {
  char done = 0;
  if (!send_all(socket, &size, sizeof size)) {
    return false;
  }
  while (size > 0) {
    const std::size_t count = std::min<std::uint64_t>(size, bytes.size());
    if (!send_all(socket, bytes.data(), count)) return false;
    size -= count;
  }
  return receive_all(socket, &done, 1);
}

void measure(Reach& reach, const std::string& address, int port) {
  const int socket = connect_to(address, port);
  if (socket < 0) {
    reach.problem = format(
        "cannot connect to {}:{}: {}", address, port, std::strerror(-socket));
    return;
  }
  const std::vector<char> bytes(1U << 20U, 'x');
  bool works = ask(socket, 1, bytes);
  auto start = Clock::now();
  for (int i = 0; i < kPings && works; ++i) works = ask(socket, 1, bytes);
  reach.round_trip_us = seconds_since(start) / kPings * 1e6;
  start = Clock::now();
  works = works && ask(socket, kBytes, bytes);
  reach.megabytes_per_second =
      static_cast<double>(kBytes) / 1e6 / seconds_since(start);
  if (!works) reach.problem = format("the connection to {} broke", address);
  ::close(socket);
}

std::string interface_of(const std::string& address) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return address;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(
      list, &freeifaddrs);
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string own = detail::numeric_address(
        each->ifa_addr,
        family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    if (address == own) return format("{} {}", each->ifa_name, address);
  }
  return address;
}

// Machine 0 needs a numeric address, since its own connection to the store is
// local.
std::string numeric(const std::string& host) {
  const detail::Addresses addresses(host, 0);
  const addrinfo* const first = addresses.first();
  return first == nullptr
      ? host
      : detail::numeric_address(first->ai_addr, first->ai_addrlen);
}

std::string check_key(const char* what, int machine) {
  return format("accelerate-cpp/check/{}/{}", what, machine);
}

// Throws if the machine does not set the key in time.
std::string wait_for(
    StoreClient& store,
    const std::string& key,
    int machine,
    const Signals& signals) {
  const auto start = Clock::now();
  while (true) {
    std::string value = store.get(key);
    if (!value.empty()) return value;
    signals.heed();
    if (Clock::now() - start > kTimeToAnswer) {
      throw DistributedError(format(
          "[launch] --check: machine {} did not join within {} s",
          machine,
          kTimeToAnswer.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

}  // namespace

std::vector<Reach> check_machines(
    const LaunchPlan& plan,
    const StorePlace& place,
    const Signals& signals) {
  const int own = plan.machine_rank;
  StoreClient store(
      own == 0 ? "localhost" : plan.address,
      place.port,
      kTimeToAnswer,
      [&](const std::string&) { signals.heed(); });
  store.show_secret(place.secret);
  const Listener listener;
  const std::string address =
      own == 0 ? numeric(plan.address) : store.own_address();
  store.set(
      check_key("address", own), format("{} {}", address, listener.port()));
  Json found = Json::array();
  for (int other = 0; other < plan.num_machines; ++other) {
    const std::string where =
        wait_for(store, check_key("address", other), other, signals);
    if (other == own) continue;
    const std::size_t space = where.find(' ');
    Reach reach;
    measure(
        reach,
        where.substr(0, space),
        static_cast<int>(
            detail::parse_int(where.substr(space + 1)).value_or(0)));
    found.push_back(
        {other,
         interface_of(address),
         reach.problem,
         reach.round_trip_us,
         reach.megabytes_per_second});
  }
  store.set(check_key("result", own), found.dump());
  std::vector<Reach> results;
  for (int from = 0; from < plan.num_machines; ++from) {
    for (const Json& each : Json::parse(
             wait_for(store, check_key("result", from), from, signals))) {
      results.push_back({from, each[0], each[1], each[2], each[3], each[4]});
    }
  }
  // Keeps the listener until all machines have finished measuring.
  store.set(check_key("done", own), "1");
  for (int other = 0; other < plan.num_machines; ++other) {
    wait_for(store, check_key("done", other), other, signals);
  }
  return results;
}

std::string describe(const std::vector<Reach>& results) {
  std::string text;
  for (const Reach& each : results) {
    std::array<char, 80> figures{};
    std::snprintf(
        figures.data(),
        figures.size(),
        "%.0f us there and back, %.0f MB/s",
        each.round_trip_us,
        each.megabytes_per_second);
    text += format(
        "machine {} ({}) to machine {}: {}\n",
        each.from,
        each.interface,
        each.to,
        each.problem.empty() ? std::string(figures.data())
                             : format("FAILED: {}", each.problem));
  }
  return text;
}

}  // namespace accelerate::cli
