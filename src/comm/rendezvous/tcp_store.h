#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accelerate::detail {

/// A client of a TCP store: ours, or torchrun's c10d::TCPStore, whose protocol
/// and error types it shares. Unlike LibTorch's client, it does no reverse DNS
/// lookups for the two ends of a connection, and retries every few milliseconds
/// while the server is not listening yet.
///
/// Has one connection: one thread's wait holds up the others. Once an answer is
/// late or the connection is lost, every call fails.
class TcpStore final : public c10d::Store {
 public:
  /// Connects, retrying until `timeout`, which also applies to every later wait
  /// and answer; 0 waits forever. Keeps `server` alive. Throws DistributedError
  /// if nothing listens there, or something other than a store.
  TcpStore(
      std::string host,
      int port,
      std::chrono::milliseconds timeout,
      std::shared_ptr<void> server = nullptr);
  TcpStore(const TcpStore&) = delete;
  TcpStore& operator=(const TcpStore&) = delete;
  ~TcpStore() override;

  c10::intrusive_ptr<c10d::Store> clone() override;

  using Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value)
      override;
  using Store::compareSet;
  std::vector<std::uint8_t> compareSet(
      const std::string& key,
      const std::vector<std::uint8_t>& expected,
      const std::vector<std::uint8_t>& desired) override;
  std::vector<std::uint8_t> get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<std::uint8_t>& value)
      override;
  std::vector<std::vector<std::uint8_t>> multiGet(
      const std::vector<std::string>& keys) override;
  void multiSet(
      const std::vector<std::string>& keys,
      const std::vector<std::vector<std::uint8_t>>& values) override;
  [[nodiscard]] bool hasExtendedApi() const override { return true; }

 private:
  using Milliseconds = std::chrono::milliseconds;

  void connect();
  void introduce();
  void send(const std::string& message);
  void await_keys(const std::vector<std::string>& keys, Milliseconds timeout);
  // Returns false if nothing arrives within the timeout.
  [[nodiscard]] bool can_receive(Milliseconds timeout) const;
  void receive(void* into, std::size_t size);
  template <class T>
  T receive();
  std::vector<std::uint8_t> receive_value();
  [[noreturn]] void give_up(const std::string& problem);

  const std::string host_;
  const int port_;
  const std::shared_ptr<void> server_;
  std::mutex mutex_;
  int socket_ = -1;
};

}  // namespace accelerate::detail
