#pragma once

#include <memory>
#include <string>

#include <netdb.h>
#include <sys/socket.h>

namespace accelerate::detail {

/// What a host and a port may mean, as sockets take them.
class Addresses {
 public:
  /// `flags` as getaddrinfo has them. An empty host: this machine's.
  Addresses(
      const std::string& host,
      int port,
      int type = SOCK_STREAM,
      int flags = 0);

  /// The first of a linked list; null if there is none.
  [[nodiscard]] const addrinfo* first() const { return list_.get(); }
  /// Why there is none; nothing if there is one.
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list_;
  std::string problem_;
};

/// "10.0.0.1"; version 4 also where it stands inside one of version 6.
std::string numeric_address(const sockaddr* address, socklen_t length);
/// Of this end of a connection.
std::string own_address(int socket);
/// Of a socket that is bound.
int own_port(int socket);

/// All of it, however the system cuts it. False, and errno says why, if the
/// connection is gone or its time is over.
bool send_all(int socket, const void* bytes, std::size_t size);
bool receive_all(int socket, void* bytes, std::size_t size);

}  // namespace accelerate::detail
