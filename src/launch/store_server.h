#pragma once

#include <string>
#include <thread>

namespace accelerate::detail {

/// The rendezvous key-value store. It runs in the launcher, which outlives the
/// ranks, so attempts can keep their keys apart, and no rank waits for rank 0
/// to listen. It speaks the protocol of c10d::TCPStore, so LibTorch and Python
/// programs connect as to torchrun's store (TORCHELASTIC_USE_AGENT_STORE). It
/// serves from its own thread.
class StoreServer {
 public:
  /// Listens at `port` (0: a free one) of `address`, or, if `is_open`, of all
  /// addresses of this machine. Throws ConfigError if the port is taken or the
  /// address is not one of this machine.
  StoreServer(const std::string& address, int port, bool is_open = false);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  [[nodiscard]] int port() const { return port_; }

 private:
  void serve();

  int port_ = 0;
  int listener_ = -1;
  int end_[2] = {-1, -1};  // a pipe; closing it ends the thread
  std::thread thread_;
};

}  // namespace accelerate::detail
