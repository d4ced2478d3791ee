#include <accelerate/objects.h>

#include <cstdint>
#include <cstring>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

void append_number(std::string& out, std::uint64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

// Layout: the number of parts, their sizes, their bytes.
std::string pack_bytes(const std::vector<std::string>& parts) {
  std::string out;
  append_number(out, parts.size());
  for (const std::string& part : parts) append_number(out, part.size());
  for (const std::string& part : parts) out += part;
  return out;
}

std::vector<std::string> unpack_bytes(std::string_view bytes) {
  const auto torn = [] {
    return DistributedError(
        "[comm] an object from another rank cannot be read; run the same "
        "program on all ranks");
  };
  const auto take_number = [&] {
    std::uint64_t number = 0;
    if (bytes.size() < sizeof number) throw torn();
    std::memcpy(&number, bytes.data(), sizeof number);
    bytes.remove_prefix(sizeof number);
    return number;
  };
  const std::uint64_t count = take_number();
  if (count > bytes.size() / sizeof(std::uint64_t)) throw torn();
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t i = 0; i < count; ++i) sizes.push_back(take_number());
  std::vector<std::string> parts;
  for (const std::uint64_t size : sizes) {
    if (size > bytes.size()) throw torn();
    parts.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  if (!bytes.empty()) throw torn();
  return parts;
}

void throw_wrong_size(std::size_t found, std::size_t expected) {
  throw DistributedError(format(
      "[comm] an object from another rank has size {} where {} was expected; "
      "run the same program on all ranks",
      found,
      expected));
}

void throw_wrong_alternative(std::uint64_t found, std::size_t count) {
  throw DistributedError(format(
      "[comm] an object from another rank holds alternative {} of a variant of "
      "{}; run the same program on all ranks",
      found,
      count));
}

}  // namespace accelerate::detail
