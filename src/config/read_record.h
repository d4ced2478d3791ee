#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "config/options/option_table.h"

namespace accelerate::detail {

/// Which options of the table have been read, and which have been reported.
/// Thread-safe.
class ReadRecord {
 public:
  ReadRecord();

  void mark_read(const OptionSpec& spec) const { set(spec, kRead); }
  [[nodiscard]] bool was_read(const OptionSpec& spec) const {
    return has(spec, kRead);
  }
  void mark_reported(const OptionSpec& spec) const { set(spec, kReported); }
  [[nodiscard]] bool was_reported(const OptionSpec& spec) const {
    return has(spec, kReported);
  }

 private:
  static constexpr std::uint8_t kRead = 1, kReported = 2;

  void set(const OptionSpec& spec, std::uint8_t mark) const;
  [[nodiscard]] bool has(const OptionSpec& spec, std::uint8_t mark) const;

  /// One per row of the table.
  std::unique_ptr<std::atomic<std::uint8_t>[]> marks_;
};

}  // namespace accelerate::detail
