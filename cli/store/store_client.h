#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace accelerate::cli {

/// A connection to a detail::StoreServer, for launchers. For one thread. Every
/// function throws DistributedError when the connection is gone.
class StoreClient {
 public:
  /// Tries until somebody listens there, and calls `between` meanwhile, which
  /// may throw. Throws DistributedError after `patience`.
  StoreClient(
      const std::string& address,
      int port,
      std::chrono::milliseconds patience,
      const std::function<void()>& between = {});
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  void set(const std::string& key, const std::string& value);
  /// The value of a key; empty if the key does not exist.
  std::string get(const std::string& key);
  std::int64_t add(const std::string& key, std::int64_t value);
  /// Sets it unless it is there already. Returns what is there then.
  std::string set_once(const std::string& key, const std::string& value);
  /// This end's address, as the other machine sees it.
  [[nodiscard]] std::string own_address() const;

 private:
  void send(const std::string& bytes);
  void receive(void* into, std::size_t size);
  std::string receive_text();
  [[noreturn]] void lose() const;

  std::string peer_;
  int socket_ = -1;
};

}  // namespace accelerate::cli
