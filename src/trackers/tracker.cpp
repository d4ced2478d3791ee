#include <accelerate/tracker.h>

namespace accelerate {

GeneralTracker::~GeneralTracker() = default;

bool GeneralTracker::requires_logging_directory() const { return false; }

bool GeneralTracker::main_process_only() const { return true; }

void GeneralTracker::start() {}

void GeneralTracker::store_init_configuration(const TrackedValues&) {}

void GeneralTracker::log(
    const TrackedValues&,
    const LogTime&,
    const TrackedValues&) {}

bool GeneralTracker::log_images(
    const std::string&,
    const TrackedImages&,
    const LogTime&,
    const TrackedValues&) {
  return false;
}

bool GeneralTracker::log_table(
    const std::string&,
    const TrackedTable&,
    const LogTime&,
    const TrackedValues&) {
  return false;
}

bool GeneralTracker::log_histogram(
    const std::string&,
    const TrackedHistogram&,
    const LogTime&,
    const TrackedValues&) {
  return false;
}

bool GeneralTracker::log_figure(
    const std::string&,
    const std::string&,
    const LogTime&,
    const TrackedValues&) {
  return false;
}

bool GeneralTracker::log_artifact(const std::string&, const std::string&) {
  return false;
}

void GeneralTracker::flush() {}

void GeneralTracker::finish() {}

std::any GeneralTracker::tracker() { return {}; }

}  // namespace accelerate
