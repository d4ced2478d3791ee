#include "launch/store_secret.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <sys/random.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

std::string make_store_secret() {
  std::array<unsigned char, 16> bytes{};
  ssize_t count = 0;
  do {
    count = ::getrandom(bytes.data(), bytes.size(), 0);
  } while (count < 0 && errno == EINTR);
  if (count != static_cast<ssize_t>(bytes.size())) {
    throw ConfigError(format(
        "[launch] the system gives no random numbers: {}",
        std::strerror(errno)));
  }
  std::string text;
  for (const unsigned char byte : bytes) {
    for (const int digit : {byte >> 4, byte & 15})
      text += "0123456789abcdef"[digit];
  }
  return text;
}

}  // namespace accelerate::detail
