#pragma once

#include <functional>
#include <string>
#include <thread>

#include "launch/store_protocol.h"

namespace accelerate::detail {

struct StoreServerOptions {
  /// True to listen on all addresses of this machine. Only for several
  /// machines.
  bool is_open = false;
  /// Clients must show the secret in their keys ("/SECRET/..."), belong to this
  /// user on this machine, or come from a machine whose launcher has joined.
  /// Empty: all clients are admitted.
  std::string secret = {};
  /// Above 1, launchers of machines 1 to num_machines - 1 may join.
  int num_machines = 1;
  /// True if joining launchers must know the secret; if false, they are told.
  bool is_secret_shared = false;
  StoreLimits limits = {};
  /// Number of descriptors that connections leave free for the rest of the
  /// process.
  int num_spare_descriptors = 64;
  /// Called on the server's thread with a line about each of the first
  /// connections that the server closed on a client.
  std::function<void(const std::string& line)> report = {};
  /// Whether a connection belongs to this user on this machine. Unset: looked
  /// up.
  std::function<bool(int socket)> is_of_this_user = {};
};

/// The rendezvous key-value store. It runs in the launcher, which outlives the
/// ranks, so attempts can keep their keys apart, and no rank waits for rank 0
/// to listen. It speaks the protocol of c10d::TCPStore, so LibTorch and Python
/// programs connect as to torchrun's store (TORCHELASTIC_USE_AGENT_STORE).
/// Serves from its own thread.
///
/// Whatever clients send, it stays within StoreLimits and does not use up the
/// process's descriptors. At the descriptor limit it closes connections that
/// were never admitted, the oldest first, or makes new ones wait until others
/// end. A request for which there is no memory closes only its own connection.
class StoreServer {
 public:
  /// Listens on `port` (0: any free one) of `address`. Throws ConfigError if
  /// the port is taken or the address is not one of this machine's.
  StoreServer(
      const std::string& address,
      int port,
      StoreServerOptions options = {});
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  [[nodiscard]] int port() const { return port_; }

 private:
  void serve();

  StoreServerOptions options_;
  int port_ = 0;
  int listener_ = -1;
  int end_[2] = {-1, -1};  // a pipe; closing it ends the thread
  std::thread thread_;
};

}  // namespace accelerate::detail
