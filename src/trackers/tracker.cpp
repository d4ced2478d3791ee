#include <accelerate/tracker.h>

namespace accelerate {

const TrackedValues& TrackedItem::options(std::string_view tracker) const {
  static const TrackedValues kNone;
  if (!kwargs) return kNone;
  const auto own = kwargs->find(tracker);
  return own == kwargs->end() ? kNone : own->second;
}

GeneralTracker::~GeneralTracker() = default;

bool GeneralTracker::requires_logging_directory() const { return false; }

bool GeneralTracker::main_process_only() const { return true; }

void GeneralTracker::start() {}

void GeneralTracker::store_init_configuration(const TrackedValues&) {}

void GeneralTracker::log(
    const TrackedValues&,
    const LogTime&,
    const TrackedValues&) {}

bool GeneralTracker::log_item(const TrackedItem& item) {
  if (const auto* config = std::get_if<TrackedConfig>(&item.content)) {
    store_init_configuration(config->values);
    return true;
  }
  const auto* const values = std::get_if<TrackedValues>(&item.content);
  if (values) log(*values, item.time, item.options(name()));
  return values != nullptr;
}

void GeneralTracker::flush() {}

void GeneralTracker::finish() {}

std::any GeneralTracker::tracker() { return {}; }

bool GeneralTracker::log_named(
    const std::string& item_name,
    TrackedItem::Content content,
    const LogTime& time,
    const TrackedValues& options) {
  TrackedItem item{time, std::move(content), item_name};
  if (!options.empty()) {
    item.kwargs =
        std::make_shared<const TrackerKwargs>(TrackerKwargs{{name(), options}});
  }
  return log_item(item);
}

}  // namespace accelerate
