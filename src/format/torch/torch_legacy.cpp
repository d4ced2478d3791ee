#include "format/torch/torch_legacy.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/text.h"
#include "format/torch/torch_file.h"

namespace accelerate::detail {

namespace {

// The pickle of the number 0x1950a86a20f9469cfc6c.
constexpr std::array<unsigned char, 15> kMagic{
    0x80,
    0x02,
    0x8a,
    0x0a,
    0x6c,
    0xfc,
    0x9c,
    0x46,
    0xf9,
    0x20,
    0x6a,
    0xa8,
    0x50,
    0x19,
    0x2e};

}  // namespace

bool is_legacy_torch(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() &&
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

namespace {

[[noreturn]] void fail_legacy(const std::string& name, std::string_view what) {
  throw CheckpointError(format("[torch] {}: {}", name, what));
}

std::string storage_key_in(
    const Pickle::Value& value,
    const std::string& name) {
  if (value.text().size() > kMostNameBytes) {
    fail_legacy(
        name,
        format(
            "the key of a storage has {} bytes; at most {} are read",
            value.text().size(),
            kMostNameBytes));
  }
  return std::string(value.text());
}

// Bytes per element of each storage, whose size counts elements of its class.
std::map<std::string, std::size_t> element_widths(
    const Pickle& pickle,
    const std::string& name) {
  std::map<std::string, std::size_t> widths;
  for (const Pickle::Value& reference : pickle.all(Pickle::Kind::persistent)) {
    const Pickle::Value storage = reference.item(0);
    if (storage.kind() != Pickle::Kind::tuple || storage.size() < 5 ||
        storage.item(0).text() != "storage") {
      continue;
    }
    const auto dtype = torch_dtype_of(storage.item(1));
    widths[storage_key_in(storage.item(2), name)] =
        dtype ? static_cast<std::size_t>(safetensors::bits_of(*dtype)) / 8 : 1;
  }
  return widths;
}

}  // namespace

LegacyTorch read_legacy_torch(
    std::span<const std::byte> bytes,
    const std::string& name) {
  const auto fail = [&](std::string_view what) { fail_legacy(name, what); };
  const std::size_t most_bytes = (std::size_t{1} << 20) + 2 * bytes.size();
  std::size_t at = kMagic.size();
  const auto next = [&] {
    auto pickle = std::make_unique<Pickle>(bytes.subspan(at), name, most_bytes);
    at += pickle->size();
    return pickle;
  };
  if (next()->root().integer() != 1001) fail("it has an unknown protocol");
  const auto system = next();
  const Pickle::Value facts = system->root().as_dict();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (facts.key(i).text() == "little_endian" &&
        facts.value(i).integer() == 0) {
      fail("it was written on a machine of another byte order");
    }
  }
  LegacyTorch found;
  found.pickle = next();
  const auto widths = element_widths(*found.pickle, name);
  const auto keys = next();
  for (std::size_t i = 0; i < keys->root().size(); ++i) {
    const std::string key = storage_key_in(keys->root().item(i), name);
    std::int64_t count = 0;
    if (bytes.size() - at < sizeof count) fail("it is torn");
    std::memcpy(&count, bytes.data() + at, sizeof count);
    at += sizeof count;
    const std::size_t width = widths.contains(key) ? widths.at(key) : 1;
    if (count < 0 ||
        static_cast<std::uint64_t>(count) > (bytes.size() - at) / width) {
      fail("it is torn");
    }
    const std::size_t size = static_cast<std::size_t>(count) * width;
    found.storages.emplace(key, bytes.subspan(at, size));
    at += size;
  }
  return found;
}

}  // namespace accelerate::detail
