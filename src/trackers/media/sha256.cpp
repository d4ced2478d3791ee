#include "trackers/media/sha256.h"

#include <array>

#include <openssl/sha.h>

namespace accelerate::detail {

std::string sha256_digits(std::string_view bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  ::SHA256(
      reinterpret_cast<const unsigned char*>(bytes.data()),
      bytes.size(),
      digest.data());
  std::string digits;
  for (const unsigned byte : digest) {
    for (const unsigned digit : {byte >> 4U, byte & 15U})
      digits += "0123456789abcdef"[digit];
  }
  return digits;
}

}  // namespace accelerate::detail
