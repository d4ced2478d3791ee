#pragma once

#include <cstddef>
#include <string_view>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// Approximate memory that an item takes, in bytes.
std::size_t size_of(const TrackedItem& item);

/// The item's kind in messages: "values", "images", ...
std::string_view kind_of(const TrackedItem& item);

/// Calls the overload of `tracker.take()` for what the item contains. Without
/// one, does what trackers do by default.
template <class Tracker>
bool take_item(Tracker& tracker, const TrackedItem& item) {
  return std::visit(
      [&](const auto& content) {
        if constexpr (requires { tracker.take(content, item); }) {
          return tracker.take(content, item);
        } else {
          return tracker.GeneralTracker::log_item(item);
        }
      },
      item.content);
}

}  // namespace accelerate::detail
