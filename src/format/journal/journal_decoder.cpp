#include "format/journal/journal_decoder.h"

#include <cstring>
#include <string>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/journal/journal_marks.h"

namespace accelerate::detail {

namespace {

// Out of line, so that its callers stay small.
[[noreturn]] void throw_beyond() {
  throw Error("[format] an entry of a journal extends beyond its frame");
}

inline std::string_view take(std::string_view& bytes, std::uint64_t size) {
  if (size > bytes.size()) throw_beyond();
  const std::string_view taken =
      bytes.substr(0, static_cast<std::size_t>(size));
  bytes.remove_prefix(taken.size());
  return taken;
}

template <class T>
inline T take_value(std::string_view& bytes) {
  T value{};
  std::memcpy(&value, take(bytes, sizeof value).data(), sizeof value);
  return value;
}

// LEB128, as in protocol buffers.
inline std::uint64_t take_varint(std::string_view& bytes) {
  if (!bytes.empty() && static_cast<std::uint8_t>(bytes.front()) < 0x80)
    return take_value<std::uint8_t>(bytes);
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    const auto byte = take_value<std::uint8_t>(bytes);
    value |= static_cast<std::uint64_t>(byte & 0x7fU) << shift;
    if (byte < 0x80) return value;
  }
  throw Error("[format] a journal has a number of more than 64 bits");
}

std::string_view take_text(std::string_view& bytes) {
  const std::uint64_t size = take_varint(bytes);
  return take(bytes, size);
}

std::int64_t from_zigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1U) ^
      -static_cast<std::int64_t>(value & 1U);
}

}  // namespace

bool JournalDecoder::next() {
  while (!rest_.empty()) {
    const char mark = take_value<char>(rest_);
    if (mark == journal_mark::kName) {
      names_.push_back(take_text(rest_));
      continue;
    }
    time_ = take_value<double>(rest_);
    step_.reset();
    if (take_value<char>(rest_) != 0) step_ = from_zigzag(take_varint(rest_));
    scalars_.clear();
    read_content(mark);
    return true;
  }
  return false;
}

void JournalDecoder::read_content(char mark) {
  switch (mark) {
    case journal_mark::kScalars:
      kind_ = Kind::scalars;
      read_scalars();
      break;
    case journal_mark::kEvent:
      kind_ = Kind::event;
      event_.kind = take_text(rest_);
      event_.name = take_text(rest_);
      event_.media_type = take_text(rest_);
      event_.body = take_text(rest_);
      break;
    case journal_mark::kSession:
      kind_ = Kind::session;
      description_ = take_text(rest_);
      break;
    case journal_mark::kRewind:
      kind_ = Kind::rewind;
      break;
    default:
      throw Error(format(
          "[format] a journal has an entry of an unknown kind ({}), which a "
          "later version wrote",
          static_cast<int>(mark)));
  }
}

void JournalDecoder::read_scalars() {
  const std::uint64_t count = take_varint(rest_);
  if (count > rest_.size()) throw_beyond();
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t name = take_varint(rest_);
    if (name >= names_.size())
      throw Error("[format] the journal is corrupt: a value has no name");
    scalars_.push_back(
        {static_cast<std::size_t>(name), take_value<double>(rest_)});
  }
}

JournalEntry JournalDecoder::entry() const {
  JournalEntry entry{time_, step_, JournalRewind{}};
  switch (kind_) {
    case Kind::scalars: {
      JournalScalars all;
      all.scalars.reserve(scalars_.size());
      for (const auto& [name, value] : scalars_)
        all.scalars.push_back({std::string(names_[name]), value});
      entry.content = std::move(all);
      break;
    }
    case Kind::event:
      entry.content = JournalEvent{
          std::string(event_.kind),
          std::string(event_.name),
          std::string(event_.media_type),
          std::string(event_.body)};
      break;
    case Kind::session:
      entry.content = JournalSession{std::string(description_)};
      break;
    case Kind::rewind:
      break;
  }
  return entry;
}

}  // namespace accelerate::detail
