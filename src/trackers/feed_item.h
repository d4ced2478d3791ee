#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <accelerate/tracker.h>

namespace accelerate::detail {

// What can be given to trackers, as it waits for them.

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

/// Something that is done in its turn; called once per tracker, of which a feed
/// that gets such has one.
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
  /// log_kwargs by the trackers' names; null without any.
  std::shared_ptr<const TrackerKwargs> kwargs = nullptr;
};

/// About the memory that an item takes, in bytes.
std::size_t size_of(const FeedItem& item);

/// Gives the item to the tracker. Returns false if the tool has no such thing.
bool give(const FeedItem& item, GeneralTracker& tracker);

/// What messages call the item: "values", "images", ...
std::string_view kind_of(const FeedItem& item);

}  // namespace accelerate::detail
