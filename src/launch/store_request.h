#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "launch/store_protocol.h"

namespace accelerate::detail {

/// A client's message.
struct StoreRequest {
  StoreQuery query{};
  /// The amount of `add`, the nonce of `ping`, the magic number of `validate`,
  /// the machine of `join`.
  std::int64_t number = 0;
  /// Keys and values in the order they arrived.
  std::vector<std::string> strings;
};

/// Assembles a message as its bytes arrive, so that many small pieces cost no
/// more than one large one. Memory grows with the bytes that have arrived,
/// never with a length that a client announces.
class StoreRequestReader {
 public:
  explicit StoreRequestReader(const StoreLimits& limits) : limits_(limits) {}

  /// Reads from the front of `bytes`. Returns the number of bytes consumed:
  /// all, or those up to the end of the message. Throws StoreRefusal for an
  /// unknown query or a length beyond the limits.
  std::size_t read(std::string_view bytes);

  [[nodiscard]] bool is_complete() const { return state_ == State::complete; }
  /// True if the message has a key and its first one has arrived.
  [[nodiscard]] bool has_key() const { return has_key_; }
  /// The complete message, or the part that has arrived.
  [[nodiscard]] StoreRequest& request() { return request_; }
  /// Drops the message and begins the next one.
  void start_next();

  /// Bytes of memory held for the message.
  [[nodiscard]] std::uint64_t memory() const {
    return string_memory_ + request_.strings.capacity() * sizeof(std::string);
  }

 private:
  enum class Field : std::uint8_t {
    word,    ///< 32 bits
    amount,  ///< 64 bits
    key,
    value,
    keys,  ///< a count, then that many keys
    pairs  ///< a count, then that many keys, each with its value
  };
  enum class State : std::uint8_t {
    query,
    number,
    count,
    length,
    text,
    complete
  };

  static std::span<const Field> fields_of(StoreQuery query);
  void begin_next_field();
  bool advance(std::string_view& bytes);
  bool read_integer(std::string_view& bytes, std::size_t width);
  bool read_text(std::string_view& bytes);
  void begin_list();
  void begin_text();
  void append_text(std::string_view piece);

  StoreLimits limits_;
  StoreRequest request_;
  State state_ = State::query;
  std::span<const Field> fields_;  // after the one that is being read
  Field field_{};
  std::uint64_t integer_ = 0;
  std::size_t integer_bytes_ = 0;
  std::uint64_t strings_left_ = 0;
  std::uint64_t text_left_ = 0;
  std::uint64_t message_bytes_ = 0;  // of the strings, as announced
  std::uint64_t string_memory_ = 0;
  bool has_key_ = false;
};

}  // namespace accelerate::detail
