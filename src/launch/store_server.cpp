#include "launch/store_server.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/machine/network.h"
#include "base/text/text.h"
#include "launch/socket_owner.h"
#include "launch/store_service.h"

namespace accelerate::detail {

namespace {

// Number of bytes read at once from unadmitted clients, and from others.
constexpr std::size_t kUnadmittedBlock = 4U << 10U;
constexpr std::size_t kBlock = 64U << 10U;
// How long new connections wait if the system has no descriptor or memory for
// them.
constexpr int kAcceptPauseMilliseconds = 100;
constexpr int kMostReports = 16;
constexpr std::size_t kFewestClients = 16;

struct StoreClientSocket {
  using Trust = std::function<bool(const StoreClientSocket&)>;

  StoreClientSocket(int descriptor, const StoreLimits& limits, Trust is_trusted)
      : socket(descriptor),
        address(peer_address(descriptor)),
        session(limits, [this, is_trusted = std::move(is_trusted)] {
          return is_trusted(*this);
        }) {}

  int socket;
  std::string address;
  StoreSession session;
};

std::size_t most_clients(int num_spare_descriptors) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<std::size_t>::max();
  }
  const auto spare = static_cast<rlim_t>(std::max(num_spare_descriptors, 0));
  const rlim_t left = limit.rlim_cur > spare ? limit.rlim_cur - spare : 0;
  return std::max<std::size_t>(left, kFewestClients);
}

class Server {
 public:
  Server(const StoreServerOptions& options, int listener, int end)
      : options_(options),
        listener_(listener),
        end_(end),
        service_(
            {.limits = options.limits,
             .secret = options.secret,
             .num_machines = options.num_machines,
             .is_secret_shared = options.is_secret_shared}),
        most_clients_(most_clients(options.num_spare_descriptors)),
        block_(kBlock) {
    waits_.reserve(kFewestClients);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() {
    for (const auto& client : clients_) close(*client);
  }

  void run() {
    while (wait()) {
      for (std::size_t i = 0; i < clients_.size(); ++i) {
        if (waits_[i + 2].revents != 0) serve(*clients_[i], waits_[i + 2]);
      }
      // Includes answers to clients that waited for another client's key.
      for (const auto& client : clients_) send_answers(*client);
      std::erase_if(
          clients_, [](const auto& client) { return client->socket < 0; });
      if (waits_[1].revents != 0) accept_one();
    }
  }

 private:
  // Returns false at the end.
  bool wait() {
    // accept_one() has reserved room.
    waits_.clear();
    waits_.push_back({end_, POLLIN, 0});
    waits_.push_back({is_accepting() ? listener_ : -1, POLLIN, 0});
    for (const auto& client : clients_) {
      const StoreSession& session = client->session;
      const int events = (session.wants_input() ? POLLIN : 0) |
          (session.unsent().empty() ? 0 : POLLOUT);
      waits_.push_back({client->socket, static_cast<short>(events), 0});
    }
    const int pause = is_paused_ ? kAcceptPauseMilliseconds : -1;
    is_paused_ = false;
    if (::poll(waits_.data(), waits_.size(), pause) >= 0)
      return waits_[0].revents == 0;
    if (errno == EINTR) {
      for (pollfd& each : waits_) each.revents = 0;
      return true;
    }
    // Out of memory, or the descriptor limit was lowered: wait only for the
    // end.
    for (pollfd& each : waits_) each.revents = 0;
    return ::poll(waits_.data(), 1, kAcceptPauseMilliseconds) <= 0;
  }

  [[nodiscard]] bool is_accepting() const {
    return !is_paused_ && (clients_.size() < most_clients_ || has_unadmitted_);
  }

  void accept_one() {
    int socket = -1;
    try {
      if (clients_.size() >= most_clients_ && !close_unadmitted())
        return report_shortage(EMFILE);
      socket =
          ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (socket >= 0) return add(socket);
      const int problem = errno;
      is_paused_ = problem == EMFILE || problem == ENFILE ||
          problem == ENOBUFS || problem == ENOMEM;
      if (is_paused_) report_shortage(problem);
    } catch (const std::bad_alloc&) {
      if (socket >= 0) ::close(socket);
      is_paused_ = true;
    }
  }

  void add(int socket) {
    const int on = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    // Frees the place of a machine that vanished without closing its
    // connection, for the launcher that succeeds it.
    ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    const int idle = 5, interval = 3, count = 3;
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    ::setsockopt(
        socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    waits_.reserve(clients_.size() + 3);
    auto client = std::make_unique<StoreClientSocket>(
        socket, options_.limits, [this](const StoreClientSocket& each) {
          return is_trusted(each);
        });
    StoreSession& session = client->session;
    service_.open(session);
    try {
      clients_.push_back(std::move(client));
    } catch (...) {
      service_.close(session);
      throw;
    }
    has_unadmitted_ = true;
  }

  // Makes room by closing a client. Returns false if all clients are admitted.
  bool close_unadmitted() {
    for (const auto& client : clients_) {
      if (client->session.is_admitted() || client->session.admit_if_trusted())
        continue;
      report(*client, "was not admitted, and its slot was needed");
      close(*client);
      std::erase_if(
          clients_, [](const auto& each) { return each->socket < 0; });
      return true;
    }
    has_unadmitted_ = false;
    return false;
  }

  [[nodiscard]] bool is_trusted(const StoreClientSocket& client) const {
    const bool is_own = options_.is_of_this_user
        ? options_.is_of_this_user(client.socket)
        : is_of_this_user(client.socket);
    return is_own || std::ranges::any_of(clients_, [&](const auto& other) {
             return other->session.has_joined() &&
                 other->address == client.address;
           });
  }

  void close(StoreClientSocket& client) {
    if (client.socket < 0) return;
    service_.close(client.session);
    ::close(std::exchange(client.socket, -1));
  }

  void report_shortage(int problem) {
    if (!options_.report || std::exchange(has_reported_shortage_, true)) return;
    options_.report(format(
        "the store has to keep a connection waiting: {}{}",
        std::strerror(problem),
        problem == EMFILE ? "; raise the limit, \"ulimit -n\"" : ""));
  }

  void report(const StoreClientSocket& client, const char* why) {
    if (!options_.report || num_reports_ >= kMostReports) return;
    ++num_reports_;
    try {
      options_.report(format(
          "the store closed a connection from {}: it {}{}",
          client.address,
          why,
          num_reports_ == kMostReports ? " (the last report of this kind)"
                                       : ""));
    } catch (const std::bad_alloc&) {
      // No memory for the line.
    }
  }

  void serve(StoreClientSocket& client, const pollfd& wait) {
    const bool is_gone = (wait.revents & (POLLIN | POLLOUT)) == 0;
    if (is_gone) return close(client);
    if ((wait.revents & POLLIN) == 0) return;
    const std::size_t size =
        client.session.is_admitted() ? kBlock : kUnadmittedBlock;
    const ssize_t count = ::recv(client.socket, block_.data(), size, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return close(client);
    guarded(client, [&] {
      service_.receive(
          client.session, {block_.data(), static_cast<std::size_t>(count)});
    });
  }

  // Closes the client if it must not, or cannot, be served.
  template <class Body>
  void guarded(StoreClientSocket& client, Body&& body) {
    try {
      std::forward<Body>(body)();
    } catch (const StoreRefusal& refusal) {
      report(client, refusal.what());
      close(client);
    } catch (const std::bad_alloc&) {
      report(client, "requested more memory than the launcher can have");
      close(client);
    }
  }

  void send_answers(StoreClientSocket& client) {
    while (client.socket >= 0 && !client.session.unsent().empty()) {
      const std::string_view unsent = client.session.unsent();
      const ssize_t count =
          ::send(client.socket, unsent.data(), unsent.size(), MSG_NOSIGNAL);
      if (count < 0) {
        if (errno != EAGAIN && errno != EINTR) close(client);
        return;
      }
      client.session.mark_sent(static_cast<std::size_t>(count));
      if (client.session.wants_input()) continue;
      guarded(client, [&] { service_.resume(client.session); });
    }
  }

  const StoreServerOptions& options_;
  int listener_;
  int end_;
  StoreService service_;
  std::size_t most_clients_;
  std::vector<char> block_;
  std::vector<std::unique_ptr<StoreClientSocket>> clients_;
  std::vector<pollfd> waits_;
  bool is_paused_ = false;  // accept nothing until the next poll has ended
  bool has_unadmitted_ = false;
  int num_reports_ = 0;
  bool has_reported_shortage_ = false;
};

// Returns the errno with which a connection would fail at once; otherwise 0.
// Sends nothing.
template <class Address>
int problem_with_connection(const Address& address, socklen_t length) {
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  const int socket = ::socket(generic->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return errno;
  const int problem = ::connect(socket, generic, length) == 0 ? 0 : errno;
  ::close(socket);
  return problem;
}

// Finds what is wrong with connections from this machine to the socket, which
// fail if the loopback interface is down.
int problem_with_own_connections(int listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) !=
      0)
    return 0;
  // An unspecified address means this machine.
  const int problem = problem_with_connection(address, length);
  sockaddr_in6 six{};
  std::memcpy(&six, &address, sizeof six);
  if (problem == 0 || address.ss_family != AF_INET6 ||
      !IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr))
    return problem;
  // IPv6 may be off; the socket accepts IPv4 as well.
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return problem_with_connection(four, sizeof four) == 0 ? 0 : problem;
}

// Returns the socket, or the negated errno.
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

StoreServer::StoreServer(
    const std::string& address,
    int port,
    StoreServerOptions options)
    : options_(std::move(options)) {
  const Addresses found(
      options_.is_open ? "" : address, port, SOCK_STREAM, AI_PASSIVE);
  if (found.first() == nullptr) {
    throw ConfigError(format(
        "[launch] main_process_ip must be an address of this machine, but is "
        "\"{}\" ({}); use 127.0.0.1, or the host name of rank 0",
        address,
        found.problem()));
  }
  int socket = -EADDRNOTAVAIL;
  // If listening on all interfaces, the IPv6 socket also accepts IPv4.
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
        "[launch] cannot listen on {} port {}: {}",
        address,
        port,
        std::strerror(-socket)));
  }
  if (const int problem = problem_with_own_connections(socket)) {
    ::close(socket);
    throw ConfigError(format(
        "[launch] ranks on this machine cannot connect to {} port {}: {}; is "
        "the loopback interface up (ip link set lo up)?",
        address,
        port,
        std::strerror(problem)));
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

void StoreServer::serve() { Server(options_, listener_, end_[0]).run(); }

}  // namespace accelerate::detail
