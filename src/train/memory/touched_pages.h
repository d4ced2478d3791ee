#pragma once

#include <cstdint>
#include <vector>

#include "train/memory/free_ranges.h"

namespace accelerate::detail {

/// The pages of a region that have been used since the system gave them.
class TouchedPages {
 public:
  /// Without `counts`, pages that become resident are never counted.
  void touch(const MemoryRange& range, bool counts = true);
  /// Pages that lie in `range` as a whole are returned to the system.
  void drop_within(const MemoryRange& range);
  /// Pages from `begin` on are returned to the system.
  void drop_from(std::int64_t begin);
  /// Number of counted bytes.
  [[nodiscard]] std::int64_t num_bytes() const {
    return num_touched_ * kPageBytes;
  }

 private:
  enum class Page : std::uint8_t { untouched, touched, uncounted };

  void drop(std::size_t first, std::size_t end);

  std::vector<Page> pages_;
  std::int64_t num_touched_ = 0;
};

}  // namespace accelerate::detail
