#pragma once

#include <memory>
#include <string>

#include <netdb.h>
#include <sys/socket.h>

namespace accelerate::detail {

/// The addresses that a host and a port resolve to.
class Addresses {
 public:
  /// `flags` as for getaddrinfo. An empty host is this machine.
  Addresses(
      const std::string& host,
      int port,
      int type = SOCK_STREAM,
      int flags = 0);

  /// The head of a linked list; null if there are no addresses.
  [[nodiscard]] const addrinfo* first() const { return list_.get(); }
  /// Why there are no addresses; empty if there are some.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list_;
  std::string problem_;
};

/// "10.0.0.1"; an IPv4 address embedded in an IPv6 one is written as IPv4.
std::string numeric_address(const sockaddr* address, socklen_t length);
/// The address of this end of a connection.
std::string own_address(int socket);
/// The address of the other end of a connection.
std::string peer_address(int socket);
/// The port of a bound socket.
int own_port(int socket);

/// Sends all bytes, in as many calls as it takes. Returns false, with the
/// reason in errno, if the connection is gone or has timed out.
bool send_all(int socket, const void* bytes, std::size_t size);
bool receive_all(int socket, void* bytes, std::size_t size);

}  // namespace accelerate::detail
