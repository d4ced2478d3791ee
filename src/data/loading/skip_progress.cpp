#include "data/loading/skip_progress.h"

#include <utility>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

ProgressOptions options_of_skipping(
    std::int64_t num_samples,
    ProgressOptions options) {
  options.description = "skipping samples";
  options.total = num_samples;
  options.leave = false;
  return options;
}

}  // namespace

SkipProgress::SkipProgress(
    const Logger& logger,
    std::int64_t num_samples,
    ProgressOptions bar,
    std::chrono::milliseconds patience)
    : logger_(&logger),
      num_samples_(num_samples),
      bar_(options_of_skipping(num_samples, std::move(bar))),
      warning_time_(LoaderClock::now() + patience) {}

void SkipProgress::update() {
  bar_.update();
  if (has_warned_ || LoaderClock::now() < warning_time_) return;
  has_warned_ = true;
  logger_->log(
      LogLevel::warning,
      "data",
      format(
          "the first {} samples of a stream are read again, since it has no "
          "state of its own; give the dataset state_dict() and "
          "load_state_dict() to continue at once",
          num_samples_));
}

}  // namespace accelerate::detail
