#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <accelerate/tracker.h>

namespace accelerate::detail {

// What can be logged to trackers, in the form in which it is queued.

struct LoggedConfig {
  TrackedValues values;
};
struct LoggedValues {
  TrackedValues values;
};
struct LoggedImages {
  std::string name;
  TrackedImages images;
};
struct LoggedTable {
  std::string name;
  TrackedTable table;
};
struct LoggedHistogram {
  std::string name;
  TrackedHistogram histogram;
};
struct LoggedFigure {
  std::string name;
  std::string svg;
};
struct LoggedArtifact {
  std::string path;
  std::string directory;
};

/// Something that runs in its turn. Called once per tracker; a feed that is
/// given calls has a single tracker.
struct LoggedCall {
  std::function<void()> function;
  std::size_t num_bytes = 0;
};

struct FeedItem {
  LogTime time = {};
  std::variant<
      LoggedConfig,
      LoggedValues,
      LoggedImages,
      LoggedTable,
      LoggedHistogram,
      LoggedFigure,
      LoggedArtifact,
      LoggedCall>
      content;
  /// log_kwargs by tracker name; null if there are none.
  std::shared_ptr<const TrackerKwargs> kwargs = nullptr;
};

/// Approximate memory that an item takes, in bytes.
std::size_t size_of(const FeedItem& item);

/// Passes the item to the tracker. Returns false if the tool does not support
/// this kind of item.
bool give(const FeedItem& item, GeneralTracker& tracker);

/// The item's name in messages: "values", "images", ...
std::string_view kind_of(const FeedItem& item);

}  // namespace accelerate::detail
