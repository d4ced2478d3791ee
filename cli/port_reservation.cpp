#include "cli/port_reservation.h"

#include <cerrno>
#include <cstring>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::cli {

using detail::concat;

PortReservation::PortReservation(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(
      address.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(
      found, &freeaddrinfo);
  if (error != 0) {
    throw ConfigError(concat(
        "[launch] main_process_ip is \"",
        address,
        "\", which is no address of this machine (",
        gai_strerror(error),
        "); use 127.0.0.1, or the host name of rank 0"));
  }
  descriptor_ = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
  const int on = 1;
  setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  int problem = 0;
  if (bind(descriptor_, found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(descriptor_, reinterpret_cast<sockaddr*>(&bound), &length) !=
          0) {
    problem = errno;
    close(descriptor_);
  }
  if (problem == EADDRINUSE) {
    throw ConfigError(concat(
        "[launch] port ",
        port,
        " of ",
        address,
        " is taken by another program; choose another --main_process_port, or "
        "0 for a free one"));
  }
  if (problem != 0) {
    throw ConfigError(concat(
        "[launch] cannot listen at ",
        address,
        " port ",
        port,
        ": ",
        std::strerror(problem)));
  }
  port_ = ntohs(
      bound.ss_family == AF_INET6
          ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
          : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

PortReservation::~PortReservation() { close(descriptor_); }

}  // namespace accelerate::cli
