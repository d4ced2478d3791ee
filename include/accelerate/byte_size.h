#pragma once

#include <cstdint>
#include <string>

#include <accelerate/export.h>

namespace accelerate {

/// A number of bytes, or a string that spells one: "10GB" (powers of 1000),
/// "5GiB" (of 1024).
class ACCELERATE_API ByteSize {
 public:
  /// Throws ConfigError for a negative number.
  ByteSize(std::int64_t bytes);
  ByteSize(int bytes) : ByteSize(std::int64_t{bytes}) {}
  /// Throws ConfigError for a string that is not a size.
  ByteSize(const std::string& text);
  ByteSize(const char* text) : ByteSize(std::string(text)) {}
  /// The size in bytes.
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }

  bool operator==(const ByteSize&) const = default;

 private:
  std::int64_t bytes_;
};

/// Formats a number of bytes for people: "1.5 GB", with powers of 1024, as
/// Accelerate does.
[[nodiscard]] ACCELERATE_API std::string convert_bytes(double bytes);

}  // namespace accelerate
