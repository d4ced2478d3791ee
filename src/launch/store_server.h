#pragma once

#include <string>
#include <thread>

namespace accelerate::detail {

/// The key-value store that ranks meet in, in the launcher, which outlives
/// them: what a dead rank left there can be told from what the next attempt
/// writes, and no rank waits for rank 0 to listen. Speaks the protocol of
/// c10d::TCPStore, so LibTorch and Python programs connect as to torchrun's
/// (TORCHELASTIC_USE_AGENT_STORE). Serves from a thread of its own.
class StoreServer {
 public:
  /// Listens at `port` (0: a free one) of `address`, or, if `is_open`, of all
  /// of this machine's. Throws ConfigError if the port is taken or the address
  /// is not this machine's.
  StoreServer(const std::string& address, int port, bool is_open = false);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();

  [[nodiscard]] int port() const { return port_; }

 private:
  void serve();

  int port_ = 0;
  int listener_ = -1;
  int end_[2] = {-1, -1};  // a pipe: closed, the thread ends
  std::thread thread_;
};

}  // namespace accelerate::detail
