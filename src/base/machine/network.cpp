#include "base/machine/network.h"

#include <array>
#include <cerrno>

#include <netinet/in.h>

namespace accelerate::detail {

Addresses::Addresses(const std::string& host, int port, int type, int flags)
    : list_(nullptr, &freeaddrinfo) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(
      host.empty() ? nullptr : host.c_str(),
      std::to_string(port).c_str(),
      &hints,
      &found);
  if (error != 0) {
    problem_ = ::gai_strerror(error);
  } else {
    list_.reset(found);
  }
}

std::string numeric_address(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> name{};
  ::getnameinfo(
      address, length, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST);
  std::string text = name.data();
  constexpr std::string_view kMapped = "::ffff:";
  if (text.starts_with(kMapped)) text.erase(0, kMapped.size());
  return text;
}

std::string own_address(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length);
  return numeric_address(reinterpret_cast<sockaddr*>(&own), length);
}

std::string peer_address(int socket) {
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  ::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length);
  return numeric_address(reinterpret_cast<sockaddr*>(&peer), length);
}

int own_port(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length);
  return ntohs(
      own.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(own).sin6_port
                                : reinterpret_cast<sockaddr_in&>(own).sin_port);
}

bool send_all(int socket, const void* bytes, std::size_t size) {
  const auto* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t count = ::send(socket, from, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    from += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

bool receive_all(int socket, void* bytes, std::size_t size) {
  auto* into = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = ::recv(socket, into, size, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    into += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

}  // namespace accelerate::detail
