#include "launch/store_request.h"

#include <algorithm>
#include <cstring>

#include "base/text/text.h"

namespace accelerate::detail {

std::span<const StoreRequestReader::Field> StoreRequestReader::fields_of(
    StoreQuery query) {
  using enum Field;
  static constexpr Field kWord[] = {word};
  static constexpr Field kKey[] = {key};
  static constexpr Field kKeyAndValue[] = {key, value};
  static constexpr Field kKeyAndTwoValues[] = {key, value, value};
  static constexpr Field kKeyAndAmount[] = {key, amount};
  static constexpr Field kKeys[] = {keys};
  static constexpr Field kPairs[] = {pairs};
  static constexpr Field kWordAndValue[] = {word, value};
  switch (query) {
    case StoreQuery::validate:
    case StoreQuery::ping:
      return kWord;
    case StoreQuery::get:
    case StoreQuery::delete_key:
      return kKey;
    case StoreQuery::set:
    case StoreQuery::append:
      return kKeyAndValue;
    case StoreQuery::compare_set:
      return kKeyAndTwoValues;
    case StoreQuery::add:
      return kKeyAndAmount;
    case StoreQuery::check:
    case StoreQuery::wait:
    case StoreQuery::multi_get:
      return kKeys;
    case StoreQuery::multi_set:
      return kPairs;
    case StoreQuery::num_keys:
    case StoreQuery::cancel_wait:
      return {};
    case StoreQuery::join:
      return kWordAndValue;
  }
  throw StoreRefusal(
      format("sent the unknown query {}", static_cast<unsigned>(query)));
}

std::size_t StoreRequestReader::read(std::string_view bytes) {
  const std::size_t size = bytes.size();
  while (state_ != State::complete && advance(bytes)) {
  }
  return size - bytes.size();
}

void StoreRequestReader::start_next() {
  const StoreLimits limits = limits_;
  *this = StoreRequestReader(limits);
}

// Returns false if more bytes are needed.
bool StoreRequestReader::advance(std::string_view& bytes) {
  switch (state_) {
    case State::query:
      if (!read_integer(bytes, 1)) return false;
      request_.query = static_cast<StoreQuery>(integer_);
      fields_ = fields_of(request_.query);
      begin_next_field();
      return true;
    case State::number:
      if (!read_integer(bytes, field_ == Field::word ? 4 : 8)) return false;
      request_.number = static_cast<std::int64_t>(integer_);
      begin_next_field();
      return true;
    case State::count:
      if (!read_integer(bytes, 8)) return false;
      begin_list();
      return true;
    case State::length:
      if (!read_integer(bytes, 8)) return false;
      begin_text();
      return true;
    case State::text:
      return read_text(bytes);
    case State::complete:
      break;
  }
  return false;
}

// Reads native byte order; every length and number passes through here.
bool StoreRequestReader::read_integer(
    std::string_view& bytes,
    std::size_t width) {
  if (integer_bytes_ == 0) integer_ = 0;
  const std::size_t count = std::min(width - integer_bytes_, bytes.size());
  std::memcpy(
      reinterpret_cast<char*>(&integer_) + integer_bytes_, bytes.data(), count);
  bytes.remove_prefix(count);
  integer_bytes_ += count;
  if (integer_bytes_ < width) return false;
  integer_bytes_ = 0;
  if (width == 1) {
    std::uint8_t value = 0;
    std::memcpy(&value, &integer_, sizeof value);
    integer_ = value;
  } else if (width == 4) {
    std::uint32_t value = 0;
    std::memcpy(&value, &integer_, sizeof value);
    integer_ = value;
  }
  return true;
}

void StoreRequestReader::begin_next_field() {
  if (fields_.empty()) {
    state_ = State::complete;
    return;
  }
  field_ = fields_.front();
  fields_ = fields_.subspan(1);
  switch (field_) {
    case Field::word:
    case Field::amount:
      state_ = State::number;
      return;
    case Field::keys:
    case Field::pairs:
      state_ = State::count;
      return;
    case Field::key:
    case Field::value:
      strings_left_ = 1;
      state_ = State::length;
      return;
  }
}

void StoreRequestReader::begin_list() {
  if (integer_ > limits_.max_keys_per_message) {
    throw StoreRefusal(format(
        "sent a message of {} keys, but the store accepts at most {} at once",
        integer_,
        limits_.max_keys_per_message));
  }
  strings_left_ = field_ == Field::pairs ? 2 * integer_ : integer_;
  if (strings_left_ == 0) {
    begin_next_field();
  } else {
    state_ = State::length;
  }
}

void StoreRequestReader::begin_text() {
  const bool is_key = field_ == Field::key || field_ == Field::keys ||
      (field_ == Field::pairs && strings_left_ % 2 == 0);
  if (is_key && integer_ > limits_.max_key_bytes) {
    throw StoreRefusal(format(
        "sent a key of {} bytes, but the store accepts at most {}",
        integer_,
        limits_.max_key_bytes));
  }
  if (integer_ > limits_.max_message_bytes - message_bytes_) {
    throw StoreRefusal(format(
        "sent a message of more than {} bytes, the most that "
        "the store accepts at once",
        limits_.max_message_bytes));
  }
  message_bytes_ += integer_;
  request_.strings.emplace_back();
  text_left_ = integer_;
  state_ = State::text;
}

bool StoreRequestReader::read_text(std::string_view& bytes) {
  const auto count = static_cast<std::size_t>(
      std::min<std::uint64_t>(text_left_, bytes.size()));
  append_text(bytes.substr(0, count));
  bytes.remove_prefix(count);
  text_left_ -= count;
  if (text_left_ > 0) return false;
  has_key_ = has_key_ || request_.query != StoreQuery::join;
  if (--strings_left_ > 0) {
    state_ = State::length;
  } else {
    begin_next_field();
  }
  return true;
}

// Doubles the capacity like std::string, but not beyond the string's size;
// reserve() would also double it.
void StoreRequestReader::append_text(std::string_view piece) {
  std::string& text = request_.strings.back();
  const std::size_t before = text.capacity();
  const std::size_t needed = text.size() + piece.size();
  if (needed > before) {
    const auto size = static_cast<std::size_t>(text.size() + text_left_);
    std::string grown;
    grown.reserve(std::min(size, std::max(needed, 2 * before)));
    grown.append(text);
    text.swap(grown);
  }
  text.append(piece);
  string_memory_ += text.capacity() - before;
}

}  // namespace accelerate::detail
