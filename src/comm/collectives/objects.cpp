#include <accelerate/objects.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

std::vector<std::string> unpack_bytes(
    std::string_view bytes,
    std::optional<std::size_t> wanted) {
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
  if (wanted && parts.size() != *wanted)
    throw_wrong_size(parts.size(), *wanted);
  return parts;
}

std::optional<std::string> unpack_optional(std::string_view bytes) {
  std::vector<std::string> parts = unpack_bytes(bytes);
  if (parts.size() > 1) throw_wrong_size(parts.size(), 1);
  if (parts.empty()) return std::nullopt;
  return std::move(parts.front());
}

std::pair<std::size_t, std::string> read_alternative(
    std::string_view bytes,
    std::size_t count) {
  std::vector<std::string> parts = unpack_bytes(bytes, 2);
  std::uint64_t found = 0;
  read_memory(parts[0], &found, sizeof found);
  require_alternative(found, count);
  return {static_cast<std::size_t>(found), std::move(parts[1])};
}

std::string memory_bytes(const void* object, std::size_t size) {
  return {static_cast<const char*>(object), size};
}

void read_memory(std::string_view bytes, void* object, std::size_t size) {
  if (bytes.size() != size) throw_wrong_size(bytes.size(), size);
  if (size != 0) std::memcpy(object, bytes.data(), size);
}

std::size_t number_of_items(std::string_view bytes, std::size_t width) {
  if (bytes.size() % width != 0) throw_wrong_size(bytes.size(), width);
  return bytes.size() / width;
}

void throw_wrong_size(std::size_t found, std::size_t expected) {
  throw DistributedError(format(
      "[comm] an object from another rank has a wrong size, {} instead of {}; "
      "run the same program on all ranks",
      found,
      expected));
}

void require_alternative(std::uint64_t found, std::size_t count) {
  if (found < count) return;
  throw DistributedError(format(
      "[comm] an object from another rank holds alternative {} of a variant of "
      "{}; run the same program on all ranks",
      found,
      count));
}

}  // namespace accelerate::detail
