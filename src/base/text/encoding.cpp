#include "base/text/encoding.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <accelerate/detail/message_text.h>
#include <accelerate/error.h>

namespace accelerate::detail {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

}  // namespace

std::string hexadecimal(std::string_view bytes) {
  std::string digits;
  for (const char each : bytes) {
    const auto byte = static_cast<unsigned char>(each);
    digits += kHexDigits[byte >> 4U];
    digits += kHexDigits[byte & 15U];
  }
  return digits;
}

std::string hexadecimal(std::uint64_t value) {
  std::string digits;
  for (unsigned shift = 64; shift > 0; shift -= 4)
    digits += kHexDigits[value >> (shift - 4) & 15U];
  return digits;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t k = 0; k < 3; ++k) {
      group <<= 8U;
      if (i + k < bytes.size())
        group |= static_cast<unsigned char>(bytes[i + k]);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      const bool is_padding = i + k > bytes.size();
      text += is_padding ? '=' : kDigits[group >> (18U - 6U * k) & 63U];
    }
  }
  return text;
}

std::string random_token() {
  std::array<char, 16> bytes{};
  ssize_t count = 0;
  do {
    count = ::getrandom(bytes.data(), bytes.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(bytes.size())) {
    throw ConfigError(format(
        "[base] the system provides no random numbers: {}",
        std::strerror(errno)));
  }
  return hexadecimal({bytes.data(), bytes.size()});
}

}  // namespace accelerate::detail
