#include "format/torch/zip_writer.h"

#include <utility>

#include <accelerate/error.h>

#include "format/torch/zip_reader.h"

namespace accelerate::detail {

namespace {

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint32_t kTooLarge = 0xffffffff;
constexpr std::size_t kHeaderBytes = 30;
// Offset of the checksum in a local header.
constexpr std::size_t kChecksumPlace = 14;

// Little-endian fields of a zip record.
class Record {
 public:
  Record& u16(std::uint64_t value) { return put(value, 2); }
  Record& u32(std::uint64_t value) { return put(value, 4); }
  Record& u64(std::uint64_t value) { return put(value, 8); }
  Record& text(std::string_view value) {
    bytes_ += value;
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  Record& put(std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i, value >>= 8U) {
      bytes_ += static_cast<char>(value & 0xffU);
    }
    return *this;
  }
  std::string bytes_;
};

std::uint64_t limited(std::uint64_t value) {
  return value < kTooLarge ? value : kTooLarge;
}

}  // namespace

ZipWriter::ZipWriter(std::unique_ptr<OutputFile> file)
    : file_(std::move(file)) {}

void ZipWriter::put(std::string_view bytes) {
  file_->write_at(at_, std::as_bytes(std::span(bytes)));
  at_ += bytes.size();
}

void ZipWriter::begin(const std::string& name, std::uint64_t num_bytes) {
  const bool is_large = num_bytes >= kTooLarge;
  Record extra;
  if (is_large) extra.u16(1).u16(16).u64(num_bytes).u64(num_bytes);
  // Padding is an extra field, with torch's name for it.
  const std::uint64_t unpadded =
      at_ + kHeaderBytes + name.size() + extra.bytes().size() + 4;
  const std::uint64_t padding =
      (kAlignment - unpadded % kAlignment) % kAlignment;
  extra.text("FB").u16(padding).text(std::string(padding, 'Z'));
  Record header;
  header.u32(0x04034b50)
      .u16(is_large ? 45 : 0)
      .u16(0x0800)
      .u16(0)
      .u16(0)
      .u16(0);
  header.u32(0)
      .u32(is_large ? kTooLarge : num_bytes)
      .u32(is_large ? kTooLarge : num_bytes)
      .u16(name.size())
      .u16(extra.bytes().size())
      .text(name)
      .text(extra.bytes());
  header_ = header.bytes();
  entries_.push_back({name, num_bytes, at_, 0});
  at_ += header_.size();
  left_ = num_bytes;
}

void ZipWriter::write(Bytes bytes) {
  if (bytes.size() > left_) {
    throw InternalError("[torch] more bytes than were announced");
  }
  entries_.back().crc32 = crc32(bytes, entries_.back().crc32);
  file_->write_at(at_, bytes);
  at_ += bytes.size();
  left_ -= bytes.size();
}

void ZipWriter::end() {
  if (left_ != 0)
    throw InternalError("[torch] fewer bytes than were announced");
  const Entry& entry = entries_.back();
  header_.replace(kChecksumPlace, 4, Record().u32(entry.crc32).bytes());
  file_->write_at(entry.header, std::as_bytes(std::span(header_)));
}

void ZipWriter::add(const std::string& name, std::string_view contents) {
  begin(name, contents.size());
  write(std::as_bytes(std::span(contents)));
  end();
}

void ZipWriter::put_directory_entry(const Entry& entry) {
  Record extra;
  const bool is_large = entry.num_bytes >= kTooLarge;
  const bool is_far = entry.header >= kTooLarge;
  if (is_large || is_far) {
    extra.u16(1).u16((is_large ? 16U : 0U) + (is_far ? 8U : 0U));
    if (is_large) extra.u64(entry.num_bytes).u64(entry.num_bytes);
    if (is_far) extra.u64(entry.header);
  }
  Record record;
  record.u32(0x02014b50)
      .u16(is_large || is_far ? 45 : 0)
      .u16(is_large || is_far ? 45 : 0)
      .u16(0x0800)
      .u16(0)
      .u16(0)
      .u16(0)
      .u32(entry.crc32)
      .u32(limited(entry.num_bytes))
      .u32(limited(entry.num_bytes))
      .u16(entry.name.size())
      .u16(extra.bytes().size())
      .u16(0)
      .u16(0)
      .u16(0)
      .u32(0)
      .u32(limited(entry.header))
      .text(entry.name)
      .text(extra.bytes());
  put(record.bytes());
}

void ZipWriter::finish() {
  const std::uint64_t directory = at_;
  for (const Entry& entry : entries_) put_directory_entry(entry);
  const std::uint64_t size = at_ - directory;
  const bool is_large =
      entries_.size() >= 0xffff || size >= kTooLarge || directory >= kTooLarge;
  if (is_large) {
    const std::uint64_t place = at_;
    Record end;
    end.u32(0x06064b50)
        .u64(44)
        .u16(45)
        .u16(45)
        .u32(0)
        .u32(0)
        .u64(entries_.size())
        .u64(entries_.size())
        .u64(size)
        .u64(directory);
    end.u32(0x07064b50).u32(0).u64(place).u32(1);
    put(end.bytes());
  }
  const std::uint64_t count =
      entries_.size() < 0xffff ? entries_.size() : 0xffff;
  Record end;
  end.u32(0x06054b50)
      .u16(0)
      .u16(0)
      .u16(count)
      .u16(count)
      .u32(limited(size))
      .u32(limited(directory))
      .u16(0);
  put(end.bytes());
  file_->finish();
}

}  // namespace accelerate::detail
