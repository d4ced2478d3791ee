#include "config/read_record.h"

#include <cstddef>

namespace accelerate::detail {

namespace {

std::size_t row_of(const OptionSpec& spec) {
  return static_cast<std::size_t>(&spec - option_table().data());
}

}  // namespace

ReadRecord::ReadRecord()
    : marks_(new std::atomic<std::uint8_t>[option_table().size()]()) {}

void ReadRecord::set(const OptionSpec& spec, std::uint8_t mark) const {
  marks_[row_of(spec)].fetch_or(mark, std::memory_order_relaxed);
}

bool ReadRecord::has(const OptionSpec& spec, std::uint8_t mark) const {
  return (marks_[row_of(spec)].load(std::memory_order_relaxed) & mark) != 0;
}

}  // namespace accelerate::detail
