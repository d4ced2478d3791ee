#include "format/journal/journal_frame.h"

#include <bit>
#include <cstring>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate::detail {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint32_t kMagic = 0x314a4341;  // "ACJ1"
constexpr std::size_t kChecksumOffset = kJournalHeaderBytes - 8;

constexpr char kName = 'N';
constexpr char kScalars = 'S';
constexpr char kEvent = 'E';
constexpr char kSession = 'B';
constexpr char kRewind = 'R';

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

// Small for small magnitudes of either sign.
std::uint64_t zigzag(std::int64_t value) {
  return (static_cast<std::uint64_t>(value) << 1U) ^
      static_cast<std::uint64_t>(value >> 63);
}

std::int64_t from_zigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1U) ^
      -static_cast<std::int64_t>(value & 1U);
}

class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  [[nodiscard]] bool at_end() const { return bytes_.empty(); }
  [[nodiscard]] std::size_t num_left() const { return bytes_.size(); }

  template <class T>
  T value() {
    T value{};
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = value_of_byte();
      value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) return value;
    }
    throw Error("[format] a journal has a number of more than 64 bits");
  }
  std::string text() { return std::string(take(varint())); }

 private:
  std::uint8_t value_of_byte() { return value<std::uint8_t>(); }
  std::string_view take(std::uint64_t size) {
    if (size > bytes_.size())
      throw Error("[format] an entry of a journal runs beyond its frame");
    const std::string_view taken =
        bytes_.substr(0, static_cast<std::size_t>(size));
    bytes_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view bytes_;
};

JournalScalars read_scalars(
    Cursor& cursor,
    const std::vector<std::string>& names) {
  JournalScalars scalars;
  const std::uint64_t count = cursor.varint();
  if (count > cursor.num_left())
    throw Error("[format] an entry of a journal runs beyond its frame");
  scalars.scalars.reserve(static_cast<std::size_t>(count));
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t id = cursor.varint();
    if (id >= names.size())
      throw Error("[format] a journal has a figure without a name");
    scalars.scalars.push_back(
        {names[static_cast<std::size_t>(id)], cursor.value<double>()});
  }
  return scalars;
}

JournalEvent read_event(Cursor& cursor) {
  JournalEvent event;
  event.kind = cursor.text();
  event.name = cursor.text();
  event.media_type = cursor.text();
  event.body = cursor.text();
  return event;
}

}  // namespace

std::optional<JournalHeader> JournalHeader::read(std::string_view bytes) {
  if (bytes.size() < kJournalHeaderBytes) return std::nullopt;
  Cursor cursor(bytes);
  if (cursor.value<std::uint32_t>() != kMagic) return std::nullopt;
  JournalHeader header;
  header.num_bytes = cursor.value<std::uint32_t>();
  header.sequence = cursor.value<std::uint64_t>();
  header.checksum = cursor.value<std::uint64_t>();
  if (cursor.value<std::uint64_t>() !=
      detail::checksum(bytes.substr(0, kChecksumOffset)))
    return std::nullopt;
  return header;
}

bool JournalHeader::describes(std::string_view payload) const {
  return payload.size() == num_bytes && detail::checksum(payload) == checksum;
}

std::size_t find_journal_header(std::string_view bytes, std::size_t from) {
  const std::string_view magic(
      reinterpret_cast<const char*>(&kMagic), sizeof kMagic);
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
  std::string& bytes = mark == kScalars ? late_ : payload_;
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
  payload_ += kName;
  append_text(payload_, name);
  return id;
}

void JournalEncoder::begin_scalars(
    double time,
    std::optional<std::int64_t> step,
    std::size_t num_scalars) {
  late_.clear();
  begin(kScalars, time, step);
  append_varint(late_, num_scalars);
  num_missing_scalars_ = num_scalars;
  if (num_scalars == 0) payload_ += late_;
}

void JournalEncoder::add_scalar(std::string_view name, double value) {
  append_varint(late_, id_of(name));
  append(late_, value);
  // New names come before the entry that has them.
  if (--num_missing_scalars_ == 0) payload_ += late_;
}

void JournalEncoder::add(const JournalEntry& entry) {
  if (const auto* scalars = std::get_if<JournalScalars>(&entry.content)) {
    begin_scalars(entry.time, entry.step, scalars->scalars.size());
    for (const auto& [name, value] : scalars->scalars) add_scalar(name, value);
  } else if (const auto* event = std::get_if<JournalEvent>(&entry.content)) {
    begin(kEvent, entry.time, entry.step);
    append_text(payload_, event->kind);
    append_text(payload_, event->name);
    append_text(payload_, event->media_type);
    append_text(payload_, event->body);
  } else if (
      const auto* session = std::get_if<JournalSession>(&entry.content)) {
    begin(kSession, entry.time, entry.step);
    append_text(payload_, session->description);
  } else {
    begin(kRewind, entry.time, entry.step);
  }
}

std::string JournalEncoder::take_frame(std::uint64_t sequence) {
  std::string frame;
  frame.reserve(kJournalHeaderBytes + payload_.size());
  append(frame, kMagic);
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

std::vector<JournalEntry> read_journal_payload(std::string_view payload) {
  std::vector<JournalEntry> entries;
  std::vector<std::string> names;
  Cursor cursor(payload);
  while (!cursor.at_end()) {
    const char mark = cursor.value<char>();
    if (mark == kName) {
      names.push_back(cursor.text());
      continue;
    }
    JournalEntry entry;
    entry.time = cursor.value<double>();
    if (cursor.value<char>() != 0) entry.step = from_zigzag(cursor.varint());
    switch (mark) {
      case kScalars:
        entry.content = read_scalars(cursor, names);
        break;
      case kEvent:
        entry.content = read_event(cursor);
        break;
      case kSession:
        entry.content = JournalSession{cursor.text()};
        break;
      case kRewind:
        entry.content = JournalRewind{};
        break;
      default:
        throw Error(format(
            "[format] a journal has an entry of an unknown kind ({}); a later "
            "version wrote it",
            static_cast<int>(mark)));
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace accelerate::detail
