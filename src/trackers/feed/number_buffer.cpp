#include "trackers/feed/number_buffer.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <variant>

namespace accelerate::detail {

namespace {

// This much memory is kept for reuse, however little of it was used.
constexpr std::size_t kKeptBytes = std::size_t{1} << 20U;

struct NumbersHeader {
  double seconds = 0;
  std::int64_t step = 0;
  std::uint32_t has_step = 0;
  std::uint32_t num_numbers = 0;
};

struct NumberHeader {
  double value = 0;
  std::size_t name_size = 0;
};

template <class T>
char* put(char* to, const T& value) {
  std::memcpy(to, &value, sizeof value);
  return to + sizeof value;
}

template <class T>
const char* take(const char* from, T& value) {
  std::memcpy(&value, from, sizeof value);
  return from + sizeof value;
}

}  // namespace

bool are_real_numbers(const TrackedValues& values) {
  for (const NamedValue& each : values)
    if (!std::holds_alternative<double>(each.value.content())) return false;
  return true;
}

std::size_t NumberBuffer::size_of(const TrackedValues& numbers) {
  std::size_t size = sizeof(NumbersHeader);
  for (const NamedValue& each : numbers)
    size += sizeof(NumberHeader) + each.name.size();
  return size;
}

void NumberBuffer::add(const TrackedValues& numbers, const LogTime& time) {
  const std::size_t begin = bytes_.size();
  bytes_.resize(begin + size_of(numbers));
  char* to =
      put(bytes_.data() + begin,
          NumbersHeader{
              time.seconds,
              time.step.value_or(0),
              time.step.has_value(),
              static_cast<std::uint32_t>(numbers.size())});
  for (const NamedValue& each : numbers) {
    to = put(
        to,
        NumberHeader{std::get<double>(each.value.content()), each.name.size()});
    std::memcpy(to, each.name.data(), each.name.size());
    to += each.name.size();
  }
}

std::size_t NumberBuffer::read(
    std::size_t offset,
    TrackedValues& numbers,
    LogTime& time) const {
  NumbersHeader header;
  const char* from = take(bytes_.data() + offset, header);
  time.seconds = header.seconds;
  time.step = std::nullopt;
  if (header.has_step != 0) time.step = header.step;
  numbers.resize(header.num_numbers);
  for (NamedValue& each : numbers) {
    NumberHeader number;
    from = take(from, number);
    each.name.assign(from, number.name_size);
    each.value = TrackedValue(number.value);
    from += number.name_size;
  }
  return static_cast<std::size_t>(from - bytes_.data());
}

void NumberBuffer::clear() {
  const bool was_small = bytes_.size() < bytes_.capacity() / 4;
  bytes_.clear();
  if (was_small && bytes_.capacity() > kKeptBytes) bytes_.shrink_to_fit();
}

}  // namespace accelerate::detail
