#include "trackers/guarded_tracker.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

class GuardedTracker final : public GeneralTracker {
 public:
  explicit GuardedTracker(std::unique_ptr<GeneralTracker> tracker)
      : tracker_(std::move(tracker)) {}

  [[nodiscard]] std::string name() const override { return tracker_->name(); }
  [[nodiscard]] bool requires_logging_directory() const override {
    return tracker_->requires_logging_directory();
  }
  [[nodiscard]] bool main_process_only() const override {
    return tracker_->main_process_only();
  }

  void start() override {
    if (state_ == State::started) refuse("start()", "was called before");
    if (state_ == State::ended) running("start()");
    state_ = State::failed;
    tracker_->start();
    state_ = State::started;
  }
  void store_init_configuration(const TrackedValues& values) override {
    running("store_init_configuration()").store_init_configuration(values);
  }
  void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options) override {
    running("log()").log(values, time, options);
  }
  bool log_item(const TrackedItem& item) override {
    constexpr std::array<std::string_view, 7> kCalls{
        "store_init_configuration()",
        "log()",
        "log_images()",
        "log_table()",
        "log_histogram()",
        "log_figure()",
        "log_artifact()"};
    static_assert(kCalls.size() == std::variant_size_v<TrackedItem::Content>);
    return running(kCalls.at(item.content.index())).log_item(item);
  }
  void flush() override {
    if (state_ == State::started) tracker_->flush();
  }
  void finish() override {
    if (state_ != State::started) return;
    // This holds even if it throws: some of what it needs may be gone by then.
    state_ = State::ended;
    tracker_->finish();
  }
  [[nodiscard]] std::any tracker() override { return tracker_->tracker(); }

 private:
  enum class State { fresh, started, failed, ended };

  GeneralTracker& running(std::string_view call) const {
    switch (state_) {
      case State::fresh:
        refuse(call, "was called before start(), which init_trackers() calls");
      case State::failed:
        refuse(call, "was called although start() failed");
      case State::ended:
        refuse(
            call,
            "was called after finish(), which end_training() and the end of "
            "the Accelerator call");
      case State::started:
        break;
    }
    return *tracker_;
  }
  [[noreturn]] void refuse(std::string_view call, std::string_view why) const {
    throw ConfigError(
        format("[trackers] {} of {} {}", call, tracker_->name(), why));
  }

  std::unique_ptr<GeneralTracker> tracker_;
  State state_ = State::fresh;
};

}  // namespace

std::unique_ptr<GeneralTracker> guard_tracker(
    std::unique_ptr<GeneralTracker> tracker) {
  return std::make_unique<GuardedTracker>(std::move(tracker));
}

}  // namespace accelerate::detail
