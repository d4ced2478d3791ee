#include <accelerate/machine.h>

#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "base/machine/network.h"
#include "base/machine/processors.h"
#include "base/text/text.h"

namespace accelerate {

namespace {

// A TCP socket, closed at the end of its scope.
class TcpSocket {
 public:
  explicit TcpSocket(int family)
      : socket_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  TcpSocket(const TcpSocket&) = delete;
  TcpSocket& operator=(const TcpSocket&) = delete;
  ~TcpSocket() {
    if (socket_ >= 0) ::close(socket_);
  }
  [[nodiscard]] int get() const { return socket_; }

 private:
  int socket_;
};

}  // namespace

bool is_port_in_use(int port) {
  if (port < 1 || port > 65535) {
    throw ConfigError(detail::format(
        "[base] the port passed to is_port_in_use() must be from 1 to 65535, "
        "but is {}",
        port));
  }
  const detail::Addresses addresses("localhost", port);
  for (const addrinfo* address = addresses.first(); address != nullptr;
       address = address->ai_next) {
    const TcpSocket socket(address->ai_family);
    if (socket.get() >= 0 &&
        ::connect(socket.get(), address->ai_addr, address->ai_addrlen) == 0) {
      return true;
    }
  }
  return false;
}

int get_free_port() {
  const TcpSocket socket(AF_INET);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  if (socket.get() < 0 ||
      ::bind(socket.get(), reinterpret_cast<sockaddr*>(&any), sizeof any) !=
          0) {
    throw Error(detail::format(
        "[base] the system has no free port: {}", std::strerror(errno)));
  }
  return detail::own_port(socket.get());
}

std::vector<int> set_numa_affinity(int local_process_index) {
  const std::vector<int> processors =
      detail::processors_of_gpu("/sys/bus/pci/devices", local_process_index);
  if (processors.empty()) return processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) {
    if (processor < CPU_SETSIZE) CPU_SET(processor, &set);
  }
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    throw Error(detail::format(
        "[base] this thread cannot be restricted to the "
        "processors of GPU {}: {}",
        local_process_index,
        std::strerror(errno)));
  }
  return processors;
}

}  // namespace accelerate
