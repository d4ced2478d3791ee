#pragma once

#include <functional>
#include <string>
#include <thread>

#include "launch/store_protocol.h"

namespace accelerate::detail {

struct StoreServerOptions {
  /// Listen at all addresses of this machine. Only for several machines.
  bool is_open = false;
  /// Clients must show it in their keys, "/SECRET/...", be of this user on this
  /// machine, or come from a machine whose launcher has joined. Empty: all
  /// clients are admitted.
  std::string secret = {};
  /// Above 1, launchers of the machines 1 to num_machines - 1 may join.
  int num_machines = 1;
  /// Launchers that join must know the secret; otherwise they are told.
  bool is_secret_shared = false;
  StoreLimits limits = {};
  /// Descriptors that connections leave free for the rest of the process.
  int num_spare_descriptors = 64;
  /// Gets a line about each of the first connections that the server closed on
  /// a client, from the server's thread.
  std::function<void(const std::string& line)> report = {};
  /// Whether a connection is of this user on this machine. Unset: look it up.
  std::function<bool(int socket)> is_of_this_user = {};
};

/// The rendezvous key-value store. It runs in the launcher, which outlives the
/// ranks, so attempts can keep their keys apart, and no rank waits for rank 0
/// to listen. It speaks the protocol of c10d::TCPStore, so LibTorch and Python
/// programs connect as to torchrun's store (TORCHELASTIC_USE_AGENT_STORE). It
/// serves from its own thread.
///
/// Whatever clients send, it holds no more than StoreLimits says, and not all
/// descriptors of the process. At that limit it closes connections that were
/// never admitted, the oldest first, and else lets new ones wait until others
/// end. A request for which there is no memory closes its own connection only.
class StoreServer {
 public:
  /// Listens at `port` (0: a free one) of `address`. Throws ConfigError if the
  /// port is taken or the address is not one of this machine.
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
