#include "trackers/feed/feed_item.h"

#include <array>

namespace accelerate::detail {

namespace {

// Shorter texts are stored inside their object.
constexpr std::size_t kInlineText = 16;

std::size_t extra_bytes(const std::string& text) {
  return text.size() < kInlineText ? 0 : text.size();
}

std::size_t extra_bytes(const TrackedValues& values);

std::size_t extra_bytes(const TrackedValue& value) {
  if (const std::string* const text = value.text()) return extra_bytes(*text);
  if (const TrackedValues* const map = value.map()) return extra_bytes(*map);
  std::size_t size = 0;
  if (const auto* list = std::get_if<TrackedValue::List>(&value.content())) {
    size += list->size() * sizeof(TrackedValue);
    for (const TrackedValue& each : *list) size += extra_bytes(each);
  }
  return size;
}

std::size_t extra_bytes(const TrackedValues& values) {
  std::size_t size = values.size() * sizeof(NamedValue);
  for (const NamedValue& each : values)
    size += extra_bytes(each.name) + extra_bytes(each.value);
  return size;
}

struct ExtraBytes {
  std::size_t operator()(const LoggedConfig& config) const {
    return extra_bytes(config.values);
  }
  std::size_t operator()(const LoggedValues& values) const {
    return extra_bytes(values.values);
  }
  std::size_t operator()(const LoggedImages& images) const {
    return images.images.values.size();
  }
  std::size_t operator()(const LoggedTable& table) const {
    std::size_t size = 0;
    for (const auto& row : table.table.rows) {
      size += row.size() * sizeof(TrackedValue);
      for (const TrackedValue& each : row) size += extra_bytes(each);
    }
    return size;
  }
  std::size_t operator()(const LoggedHistogram& histogram) const {
    return 2 * sizeof(double) * histogram.histogram.edges.size();
  }
  std::size_t operator()(const LoggedFigure& figure) const {
    return figure.svg.size();
  }
  std::size_t operator()(const LoggedArtifact& artifact) const {
    return artifact.path.size() + artifact.directory.size();
  }
  std::size_t operator()(const LoggedCall& call) const {
    return call.num_bytes;
  }
};

struct Give {
  GeneralTracker& tracker;
  const LogTime& time;
  const TrackedValues& options;

  bool operator()(const LoggedConfig& config) const {
    tracker.store_init_configuration(config.values);
    return true;
  }
  bool operator()(const LoggedValues& values) const {
    tracker.log(values.values, time, options);
    return true;
  }
  bool operator()(const LoggedImages& each) const {
    return tracker.log_images(each.name, each.images, time, options);
  }
  bool operator()(const LoggedTable& each) const {
    return tracker.log_table(each.name, each.table, time, options);
  }
  bool operator()(const LoggedHistogram& each) const {
    return tracker.log_histogram(each.name, each.histogram, time, options);
  }
  bool operator()(const LoggedFigure& each) const {
    return tracker.log_figure(each.name, each.svg, time, options);
  }
  bool operator()(const LoggedArtifact& each) const {
    return tracker.log_artifact(each.path, each.directory);
  }
  bool operator()(const LoggedCall& each) const {
    each.function();
    return true;
  }
};

}  // namespace

std::size_t size_of(const FeedItem& item) {
  return sizeof item + std::visit(ExtraBytes(), item.content);
}

bool give(const FeedItem& item, GeneralTracker& tracker) {
  static const TrackedValues kNone;
  const TrackedValues* options = &kNone;
  if (item.kwargs) {
    const auto own = item.kwargs->find(tracker.name());
    if (own != item.kwargs->end()) options = &own->second;
  }
  return std::visit(Give{tracker, item.time, *options}, item.content);
}

std::string_view kind_of(const FeedItem& item) {
  constexpr std::array<std::string_view, 8> kNames{
      "configurations",
      "values",
      "images",
      "tables",
      "histograms",
      "figures",
      "artifacts",
      "events"};
  static_assert(
      kNames.size() == std::variant_size_v<decltype(FeedItem::content)>);
  return kNames.at(item.content.index());
}

}  // namespace accelerate::detail
