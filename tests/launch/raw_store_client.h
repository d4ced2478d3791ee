#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/machine/network.h"
#include "launch/store_protocol.h"

namespace accelerate::testing {

/// The bytes of one message to a store, well-formed or not.
class StoreMessage {
 public:
  explicit StoreMessage(detail::StoreQuery query) { value(query); }
  template <class T>
  StoreMessage& value(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  StoreMessage& text(const std::string& text) {
    length(text.size());
    bytes_ += text;
    return *this;
  }
  StoreMessage& length(std::uint64_t length) { return value(length); }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// A client that sends arbitrary bytes, one by one if needed.
class RawStoreClient {
 public:
  using Query = detail::StoreQuery;

  /// Connects to 127.0.0.1, and sends the magic number if `is_valid`.
  explicit RawStoreClient(int port, bool is_valid = true) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (socket_ < 0 ||
        ::connect(
            socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) !=
            0) {
      throw std::runtime_error("cannot connect to the store");
    }
    if (is_valid)
      send(StoreMessage(Query::validate).value(detail::kStoreMagic));
  }
  RawStoreClient(const RawStoreClient&) = delete;
  RawStoreClient& operator=(const RawStoreClient&) = delete;
  ~RawStoreClient() { ::close(socket_); }

  bool send(const std::string& bytes) {
    return detail::send_all(socket_, bytes.data(), bytes.size());
  }
  bool send(const StoreMessage& message) { return send(message.bytes()); }

  bool set(const std::string& key, const std::string& value) {
    return send(StoreMessage(Query::set).text(key).text(value));
  }
  std::int64_t add(const std::string& key, std::int64_t amount) {
    send(StoreMessage(Query::add).text(key).value(amount));
    return receive<std::int64_t>();
  }
  std::string get(const std::string& key) {
    send(StoreMessage(Query::get).text(key));
    return receive_text();
  }
  /// Whether the server answers; false once it has closed the connection.
  bool is_served() {
    const std::uint32_t nonce = 4711;
    send(StoreMessage(Query::ping).value(nonce));
    std::uint32_t answer = 0;
    return detail::receive_all(socket_, &answer, sizeof answer) &&
        answer == nonce;
  }
  /// Waits until the server has closed the connection.
  bool is_closed() {
    char byte = 0;
    return ::recv(socket_, &byte, 1, 0) <= 0;
  }

  template <class T>
  T receive() {
    T value{};
    if (!detail::receive_all(socket_, &value, sizeof value))
      throw std::runtime_error("the store closed the connection");
    return value;
  }
  std::string receive_text() {
    std::string text(receive<std::uint64_t>(), '\0');
    if (!detail::receive_all(socket_, text.data(), text.size()))
      throw std::runtime_error("the store closed the connection");
    return text;
  }

 private:
  int socket_ = -1;
};

}  // namespace accelerate::testing
