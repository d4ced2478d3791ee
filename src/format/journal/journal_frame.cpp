#include "format/journal/journal_frame.h"

#include <bit>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "format/journal/journal_marks.h"

namespace accelerate::detail {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kJournalMagic = 0x314a4341;  // "ACJ1"
constexpr std::size_t kChecksumOffset = kJournalHeaderBytes - 8;

std::uint64_t checksum(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

template <class T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// LEB128, as in protocol buffers.
void append_varint(std::string& bytes, std::uint64_t value) {
  while (value >= 0x80) {
    bytes += static_cast<char>(value | 0x80U);
    value >>= 7U;
  }
  bytes += static_cast<char>(value);
}

void append_text(std::string& bytes, std::string_view text) {
  append_varint(bytes, text.size());
  bytes += text;
}

// Maps numbers of small magnitude, of either sign, to small numbers.
std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1U) ^
      static_cast<std::uint64_t>(value >> 63);
}

template <class T>
T value_at(std::string_view bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::optional<JournalHeader> JournalHeader::read(std::string_view bytes) {
  if (bytes.size() < kJournalHeaderBytes) return std::nullopt;
  if (value_at<std::uint32_t>(bytes, 0) != kJournalMagic ||
      value_at<std::uint64_t>(bytes, kChecksumOffset) !=
          detail::checksum(bytes.substr(0, kChecksumOffset)))
    return std::nullopt;
  JournalHeader header;
  header.num_bytes = value_at<std::uint32_t>(bytes, 4);
  header.sequence = value_at<std::uint64_t>(bytes, 8);
  header.checksum = value_at<std::uint64_t>(bytes, 16);
  if (header.num_bytes > kMostJournalFrameBytes) return std::nullopt;
  return header;
}

bool JournalHeader::describes(std::string_view payload) const {
  return payload.size() == num_bytes && detail::checksum(payload) == checksum;
}

FrameStart frame_start_of(std::string_view bytes) {
  const std::string_view magic(
      reinterpret_cast<const char*>(&kJournalMagic), sizeof kJournalMagic);
  const std::string_view family = magic.substr(0, magic.size() - 1);
  if (bytes.size() < kJournalHeaderBytes) {
    const bool is_cut = !bytes.empty() &&
        bytes.substr(0, magic.size()) == magic.substr(0, bytes.size());
    if (is_cut) return FrameStart::frame;
  } else if (JournalHeader::read(bytes)) {
    return FrameStart::frame;
  }
  const bool is_other = bytes.size() >= magic.size() &&
      bytes.starts_with(family) && bytes[family.size()] != magic.back() &&
      bytes[family.size()] >= '0' && bytes[family.size()] <= '9';
  return is_other ? FrameStart::other_version : FrameStart::none;
}

std::size_t find_journal_header(std::string_view bytes, std::size_t from) {
  const std::string_view magic(
      reinterpret_cast<const char*>(&kJournalMagic), sizeof kJournalMagic);
  for (std::size_t at = bytes.find(magic, from); at != std::string_view::npos;
       at = bytes.find(magic, at + 1)) {
    if (JournalHeader::read(bytes.substr(at))) return at;
  }
  return std::string_view::npos;
}

void JournalEncoder::begin(
    char mark,
    double time,
    std::optional<std::int64_t> step) {
  std::string& bytes = mark == journal_mark::kScalars ? late_ : payload_;
  bytes += mark;
  append(bytes, time);
  bytes += static_cast<char>(step ? 1 : 0);
  if (step) append_varint(bytes, zigzag(*step));
  ++num_entries_;
}

std::uint64_t JournalEncoder::id_of(std::string_view name) {
  const auto found = ids_.find(name);
  if (found != ids_.end()) return found->second;
  const std::uint64_t id = ids_.size();
  ids_.emplace(name, id);
  payload_ += journal_mark::kName;
  append_text(payload_, name);
  return id;
}

void JournalEncoder::begin_scalars(
    double time,
    std::optional<std::int64_t> step,
    std::size_t num_scalars) {
  late_.clear();
  begin(journal_mark::kScalars, time, step);
  append_varint(late_, num_scalars);
  num_missing_scalars_ = num_scalars;
  if (num_scalars == 0) payload_ += late_;
}

void JournalEncoder::add_scalar(std::string_view name, double value) {
  append_varint(late_, id_of(name));
  append(late_, value);
  // New names precede the entry that uses them.
  if (--num_missing_scalars_ == 0) payload_ += late_;
}

void JournalEncoder::add(const JournalEntry& entry) {
  if (const auto* scalars = std::get_if<JournalScalars>(&entry.content)) {
    begin_scalars(entry.time, entry.step, scalars->scalars.size());
    for (const auto& [name, value] : scalars->scalars) add_scalar(name, value);
  } else if (const auto* event = std::get_if<JournalEvent>(&entry.content)) {
    begin(journal_mark::kEvent, entry.time, entry.step);
    append_text(payload_, event->kind);
    append_text(payload_, event->name);
    append_text(payload_, event->media_type);
    append_text(payload_, event->body);
  } else if (
      const auto* session = std::get_if<JournalSession>(&entry.content)) {
    begin(journal_mark::kSession, entry.time, entry.step);
    append_text(payload_, session->description);
  } else {
    begin(journal_mark::kRewind, entry.time, entry.step);
  }
}

std::string JournalEncoder::take_frame(std::uint64_t sequence) {
  std::string frame;
  frame.reserve(kJournalHeaderBytes + payload_.size());
  append(frame, kJournalMagic);
  append(frame, static_cast<std::uint32_t>(payload_.size()));
  append(frame, sequence);
  append(frame, checksum(payload_));
  append(frame, checksum(frame));
  frame += payload_;
  payload_.clear();
  ids_.clear();
  num_entries_ = 0;
  return frame;
}

}  // namespace accelerate::detail
