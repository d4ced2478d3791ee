#include "format/torch/zip_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <zlib.h>

#include <accelerate/error.h>

#include "base/text/text.h"

// The layout follows PKWARE's APPNOTE 6.3.
namespace accelerate::detail {

namespace {

using Bytes = std::span<const std::byte>;

constexpr std::uint32_t kDirectoryEnd = 0x06054b50;
constexpr std::uint32_t kEnd64Locator = 0x07064b50;
constexpr std::uint32_t kEnd64 = 0x06064b50;
constexpr std::uint32_t kCentral = 0x02014b50;
constexpr std::uint32_t kLocal = 0x04034b50;
constexpr std::size_t kEndBytes = 22;
constexpr std::size_t kEnd64LocatorBytes = 20;
constexpr std::size_t kEnd64Bytes = 56;
constexpr std::size_t kCentralBytes = 46;
constexpr std::size_t kLocalBytes = 30;
constexpr std::size_t kMostComment = 0xffff;
constexpr std::uint16_t kZip64Field = 1;
constexpr std::uint32_t kIn64 = 0xffffffff;

// The number at offset `at`, which must be inside.
template <class Number>
Number number_at(Bytes bytes, std::size_t at) {
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) {
    value = static_cast<Number>(value << 8) |
        std::to_integer<Number>(bytes[at + i]);
  }
  return value;
}

// `size` bytes starting at `at`; nothing if they are not all inside.
std::optional<Bytes> piece(Bytes bytes, std::uint64_t at, std::uint64_t size) {
  if (at > bytes.size() || size > bytes.size() - at) return std::nullopt;
  return bytes.subspan(at, size);
}

std::string bytes_as_text(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The offset of the end record, searched for from the end.
std::optional<std::size_t> find_end(Bytes file) {
  if (file.size() < kEndBytes) return std::nullopt;
  const std::size_t last = file.size() - kEndBytes;
  const std::size_t first = last - std::min(last, kMostComment);
  for (std::size_t at = last + 1; at-- > first;) {
    // The comment must end where the file does; otherwise any matching four
    // bytes would do.
    if (number_at<std::uint32_t>(file, at) == kDirectoryEnd &&
        number_at<std::uint16_t>(file, at + 20) ==
            file.size() - at - kEndBytes) {
      return at;
    }
  }
  return std::nullopt;
}

struct Directory {
  std::uint64_t count = 0;
  std::uint64_t size = 0;
  std::uint64_t begin = 0;
};

std::optional<Directory> find_directory(Bytes file) {
  const std::optional<std::size_t> end = find_end(file);
  if (!end) return std::nullopt;
  Directory directory{
      number_at<std::uint16_t>(file, *end + 10),
      number_at<std::uint32_t>(file, *end + 12),
      number_at<std::uint32_t>(file, *end + 16)};
  if (*end < kEnd64LocatorBytes) return directory;
  const std::size_t locator = *end - kEnd64LocatorBytes;
  if (number_at<std::uint32_t>(file, locator) != kEnd64Locator) {
    return directory;
  }
  const auto record =
      piece(file, number_at<std::uint64_t>(file, locator + 8), kEnd64Bytes);
  if (!record || number_at<std::uint32_t>(*record, 0) != kEnd64) {
    return std::nullopt;
  }
  return Directory{
      number_at<std::uint64_t>(*record, 32),
      number_at<std::uint64_t>(*record, 40),
      number_at<std::uint64_t>(*record, 48)};
}

struct CentralEntry {
  std::uint16_t flags = 0;
  std::uint16_t method = 0;
  std::uint32_t crc = 0;
  std::uint64_t packed = 0;
  std::uint64_t size = 0;
  std::uint64_t local = 0;
};

// Fills in the fields that did not fit into 32 bits; returns false if they are
// missing.
bool read_zip64(Bytes extra, CentralEntry& entry) {
  std::size_t at = 0;
  const bool is_needed =
      entry.size == kIn64 || entry.packed == kIn64 || entry.local == kIn64;
  while (at + 4 <= extra.size()) {
    const auto id = number_at<std::uint16_t>(extra, at);
    const auto size = number_at<std::uint16_t>(extra, at + 2);
    const auto field = piece(extra, at + 4, size);
    if (!field) return !is_needed;
    at += 4U + size;
    if (id != kZip64Field) continue;
    std::size_t next = 0;
    for (std::uint64_t* value : {&entry.size, &entry.packed, &entry.local}) {
      if (*value != kIn64) continue;
      if (next + 8 > field->size()) return false;
      *value = number_at<std::uint64_t>(*field, next);
      next += 8;
    }
    return true;
  }
  return !is_needed;
}

}  // namespace

ZipReader::ZipReader(Bytes file, std::string name) : name_(std::move(name)) {
  const std::optional<Directory> directory = find_directory(file);
  if (!directory) {
    fail("it does not end as an archive: it is torn, or of another format");
  }
  const auto records = piece(file, directory->begin, directory->size);
  if (!records || directory->count > records->size() / kCentralBytes) {
    fail("its directory is not inside the file");
  }
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < directory->count; ++i) {
    const auto fixed = piece(*records, at, kCentralBytes);
    if (!fixed || number_at<std::uint32_t>(*fixed, 0) != kCentral) {
      fail(format("entry {} of its directory is invalid", i));
    }
    CentralEntry entry{
        number_at<std::uint16_t>(*fixed, 8),
        number_at<std::uint16_t>(*fixed, 10),
        number_at<std::uint32_t>(*fixed, 16),
        number_at<std::uint32_t>(*fixed, 20),
        number_at<std::uint32_t>(*fixed, 24),
        number_at<std::uint32_t>(*fixed, 42)};
    const auto name_size = number_at<std::uint16_t>(*fixed, 28);
    const auto extra_size = number_at<std::uint16_t>(*fixed, 30);
    const auto comment_size = number_at<std::uint16_t>(*fixed, 32);
    at += kCentralBytes;
    const auto name_bytes = piece(*records, at, name_size);
    const auto extra = piece(*records, at + name_size, extra_size);
    if (!name_bytes || !extra || !read_zip64(*extra, entry)) {
      fail(format("entry {} of its directory is torn", i));
    }
    at += std::size_t{name_size} + extra_size + comment_size;
    const std::string entry_name = bytes_as_text(*name_bytes);
    const auto complain = [&](std::string_view what) {
      fail(format("'{}' {}", printable(entry_name), what));
    };
    const bool is_stored = (entry.flags & 1U) == 0 && entry.method == 0;
    if (is_stored && entry.packed != entry.size) {
      complain("has two different sizes");
    }
    const auto local = piece(file, entry.local, kLocalBytes);
    if (!local || number_at<std::uint32_t>(*local, 0) != kLocal) {
      complain("is not where the directory says");
    }
    const std::uint64_t skipped = kLocalBytes +
        number_at<std::uint16_t>(*local, 26) +
        number_at<std::uint16_t>(*local, 28);
    const auto contents = piece(file, entry.local + skipped, entry.packed);
    if (!contents) complain("is not inside the file");
    const Entry found{*contents, entry.crc, is_stored};
    if (!entries_.emplace(entry_name, found).second) {
      complain("appears twice");
    }
  }
}

void ZipReader::fail(const std::string& what) const {
  throw CheckpointError(format("[torch] {} cannot be read: {}", name_, what));
}

const ZipReader::Entry& ZipReader::at(const std::string& entry) const {
  const auto found = entries_.find(entry);
  if (found == entries_.end())
    fail(format("it has no entry '{}'", printable(entry)));
  if (!found->second.is_stored) {
    fail(format(
        "'{}' is compressed or encrypted; torch.save() stores it as it is",
        printable(entry)));
  }
  return found->second;
}

void ZipReader::verify(const std::string& entry) const {
  const Entry& found = at(entry);
  if (crc32(found.bytes) != found.crc32) {
    fail(format(
        "the contents of '{}' have changed: they are torn", printable(entry)));
  }
}

std::uint32_t crc32(Bytes bytes, std::uint32_t before) {
  // zlib counts in 32 bits.
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  uLong crc = before;
  for (std::size_t i = 0; i < bytes.size(); i += kPiece) {
    const Bytes piece = bytes.subspan(i, std::min(kPiece, bytes.size() - i));
    crc = ::crc32(
        crc,
        reinterpret_cast<const Bytef*>(piece.data()),
        static_cast<uInt>(piece.size()));
  }
  return static_cast<std::uint32_t>(crc);
}

}  // namespace accelerate::detail
