#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace accelerate::cli {

/// A launcher's connection to a detail::StoreServer. Not thread-safe. Every
/// function throws DistributedError if the connection is lost. If the server
/// has a secret, call join() or show_secret() first.
class StoreClient {
 public:
  /// Retries until the server listens, calling `between`, which may throw, with
  /// what is wrong between attempts. Throws DistributedError after `patience`.
  StoreClient(
      const std::string& address,
      int port,
      std::chrono::milliseconds patience,
      const std::function<void(const std::string& problem)>& between = {});
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  /// Asks the server of a launch to admit this launcher as `machine` and to
  /// disclose its secret, or compares the secret that both were `given`. If
  /// another launcher holds that place, waits up to `patience` for it to leave,
  /// calling `between`, which may throw. Throws ConfigError if the server
  /// refuses.
  std::string join(
      int machine,
      const std::string& given,
      std::chrono::milliseconds patience = {},
      const std::function<void()>& between = {});
  /// Identifies this client to the server by its keys from now on.
  void show_secret(const std::string& secret);

  void set(const std::string& key, const std::string& value);
  /// The value of a key; empty if the key does not exist.
  std::string get(const std::string& key);
  /// Adds to an integer, which starts at 0. Returns the sum.
  std::int64_t add(const std::string& key, std::int64_t value);
  /// Sets the key unless it exists. Returns its value afterwards.
  std::string set_once(const std::string& key, const std::string& value);
  /// This end's address, as the other machine sees it.
  [[nodiscard]] std::string own_address() const;

 private:
  void send(const std::string& bytes);
  void receive(void* destination, std::size_t size);
  std::string receive_text();
  [[noreturn]] void lose() const;

  [[nodiscard]] std::string key_of(const std::string& key) const {
    return prefix_ + key;
  }

  std::string peer_;
  std::string prefix_;
  int socket_ = -1;
};

}  // namespace accelerate::cli
