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
  std::size_t operator()(const TrackedConfig& config) const {
    return extra_bytes(config.values);
  }
  std::size_t operator()(const TrackedValues& values) const {
    return extra_bytes(values);
  }
  std::size_t operator()(const TrackedImages& images) const {
    return images.values.size();
  }
  std::size_t operator()(const TrackedTable& table) const {
    std::size_t size = 0;
    for (const auto& row : table.rows) {
      size += row.size() * sizeof(TrackedValue);
      for (const TrackedValue& each : row) size += extra_bytes(each);
    }
    return size;
  }
  std::size_t operator()(const TrackedHistogram& histogram) const {
    return 2 * sizeof(double) * histogram.edges.size();
  }
  std::size_t operator()(const TrackedFigure& figure) const {
    return figure.svg.size();
  }
  std::size_t operator()(const TrackedArtifact& artifact) const {
    return artifact.path.size() + artifact.directory.size();
  }
};

}  // namespace

std::size_t size_of(const TrackedItem& item) {
  return sizeof item + std::visit(ExtraBytes(), item.content);
}

std::string_view kind_of(const TrackedItem& item) {
  constexpr std::array<std::string_view, 7> kNames{
      "configurations",
      "values",
      "images",
      "tables",
      "histograms",
      "figures",
      "artifacts"};
  static_assert(kNames.size() == std::variant_size_v<TrackedItem::Content>);
  return kNames.at(item.content.index());
}

}  // namespace accelerate::detail
