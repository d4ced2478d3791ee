#include "launch/socket_owner.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace accelerate::detail {

namespace {

/// One end of a connection; IPv4 addresses are mapped to IPv6.
struct End {
  std::array<std::uint32_t, 4> words{};  // as the kernel stores them
  unsigned port = 0;

  [[nodiscard]] bool is_ipv4() const {
    return words[0] == 0 && words[1] == 0 && words[2] == htonl(0xFFFF);
  }
  [[nodiscard]] bool is_loopback() const {
    if (is_ipv4()) return ntohl(words[3]) >> 24U == 127;
    return words[0] == 0 && words[1] == 0 && words[2] == 0 &&
        words[3] == htonl(1);
  }
  // Formats the end as in /proc/net/tcp (IPv4) and /proc/net/tcp6.
  [[nodiscard]] std::string text(bool as_ipv4) const {
    std::array<char, 48> out{};
    if (as_ipv4) {
      std::snprintf(out.data(), out.size(), "%08X:%04X", words[3], port);
    } else {
      std::snprintf(
          out.data(),
          out.size(),
          "%08X%08X%08X%08X:%04X",
          words[0],
          words[1],
          words[2],
          words[3],
          port);
    }
    return out.data();
  }
};

using NameOfEnd = int(int, sockaddr*, socklen_t*);

std::optional<End> end_of(int socket, NameOfEnd* name) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (name(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return std::nullopt;
  End end;
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    end.words = {0, 0, htonl(0xFFFF), ipv4.sin_addr.s_addr};
    end.port = ntohs(ipv4.sin_port);
    return end;
  }
  if (address.ss_family != AF_INET6) return std::nullopt;
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  std::memcpy(end.words.data(), &ipv6.sin6_addr, sizeof end.words);
  end.port = ntohs(ipv6.sin6_port);
  return end;
}

enum class Owner { unreadable, not_found, this_user, another };

// Looks up the connection's row for the peer's socket, where the ends are
// swapped.
Owner owner_in(const char* table, const std::string& ends) {
  std::ifstream file(table);
  if (!file) return Owner::unreadable;
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(ends);
    if (at == std::string::npos) continue;
    std::istringstream fields(line.substr(at + ends.size()));
    std::string state, queues, timer, retransmits;
    unsigned long uid = 0, timeout = 0, inode = 0;
    fields >> state >> queues >> timer >> retransmits >> uid >> timeout >>
        inode;
    // A socket that its process has closed has no inode, and shows user 0.
    const bool is_open = fields && state == "01" && inode != 0;
    return is_open && uid == ::geteuid() ? Owner::this_user : Owner::another;
  }
  return Owner::not_found;
}

}  // namespace

bool is_of_this_user(int socket) {
  const auto peer = end_of(socket, &::getpeername);
  const auto own = end_of(socket, &::getsockname);
  if (!peer || !own) return false;
  const auto ends = [&](bool as_ipv4) {
    return " " + peer->text(as_ipv4) + " " + own->text(as_ipv4) + " ";
  };
  // Rows can be missed while others are added and removed.
  constexpr int kReads = 3;
  for (int i = 0; i < kReads; ++i) {
    const Owner ipv6 = owner_in("/proc/net/tcp6", ends(false));
    const Owner ipv4 = peer->is_ipv4() ? owner_in("/proc/net/tcp", ends(true))
                                       : Owner::not_found;
    for (const Owner owner : {ipv4, ipv6}) {
      if (owner == Owner::this_user) return true;
      if (owner == Owner::another) return false;
    }
    if (ipv4 == Owner::unreadable ||
        (ipv6 == Owner::unreadable && !peer->is_ipv4())) {
      return peer->is_loopback();
    }
  }
  return false;
}

}  // namespace accelerate::detail
