#pragma once

namespace accelerate::detail {

/// Whether the other end of a TCP connection is an open socket of a process on
/// this machine (in this network namespace) with the same effective user. Reads
/// /proc/net/tcp; if that cannot be read, every loopback address counts.
bool is_of_this_user(int socket);

}  // namespace accelerate::detail
