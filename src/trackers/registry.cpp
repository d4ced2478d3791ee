#include "trackers/registry.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>
#include <variant>

#include <accelerate/error.h>
#include <accelerate/log.h>

#include "base/text/text.h"

namespace accelerate {

namespace detail {

namespace {

constexpr std::string_view kAll = "all";

template <MakeTracker kMake>
std::shared_ptr<GeneralTracker> guarded(const TrackerRequest& request) {
  return guard_tracker(kMake(request));
}

const std::vector<TrackerClass>& own_classes() {
  // Name, needs a directory, needs Python.
  static const std::vector<TrackerClass> classes{
      {"tensorboard", true, false, &guarded<&make_tensorboard>},
      {"wandb", false, false, &guarded<&make_wandb>},
      {"trackio", false, false, &guarded<&make_trackio>},
      {"comet_ml", false, true, &guarded<&make_comet_ml>},
      {"aim", true, true, &guarded<&make_aim>},
      {"mlflow", false, false, &guarded<&make_mlflow>},
      {"clearml", false, true, &guarded<&make_clearml>},
      {"dvclive", false, false, &guarded<&make_dvclive>},
      {"swanlab", false, true, &guarded<&make_swanlab>}};
  return classes;
}

// Classes are registered before an Accelerator exists, from any thread.
struct Registered {
  std::mutex mutex;
  std::vector<TrackerClass> classes;
};

Registered& registered() {
  static Registered all;
  return all;
}

// The names of trackers, in the order in which Accelerate lists them.
std::string known_names() {
  std::vector<std::string> names{"'all'", "'aim'"};
  for (const TrackerClass& each : tracker_classes()) {
    if (each.name != "aim") names.push_back(format("'{}'", each.name));
  }
  return join(names, ", ");
}

class Choice {
 public:
  Choice(
      const std::filesystem::path& logging_dir,
      const IsInstalled& is_installed,
      const std::function<void(const std::string&)>& note)
      : logging_dir_(logging_dir), is_installed_(is_installed), note_(note) {}

  void add(const std::shared_ptr<GeneralTracker>& instance) {
    if (instance == nullptr) {
      throw ConfigError("[trackers] log_with must not contain a null tracker");
    }
    const auto is_same = [&](const ChosenTracker& each) {
      return each.instance == instance;
    };
    if (std::ranges::none_of(chosen_, is_same))
      chosen_.push_back({instance->name(), instance});
  }

  void add(const std::string& name) {
    const auto known = find_tracker_class(name);
    if (!known) {
      throw ConfigError(format(
          "[trackers] Unsupported logging capability: {}. Choose between [{}]",
          printable(name),
          known_names()));
    }
    const auto is_same = [&](const ChosenTracker& each) {
      return each.instance == nullptr && each.name == name;
    };
    if (std::ranges::any_of(chosen_, is_same)) return;
    if (!is_installed_(*known)) {
      if (note_) {
        note_(format(
            "[trackers] Tried adding logger {}, but that package is "
            "unavailable in the system.",
            name));
      }
      return;
    }
    if (known->requires_logging_directory && logging_dir_.empty()) {
      throw ConfigError(format(
          "[trackers] Logging with `{}` requires a "
          "`logging_dir` to be passed in.",
          name));
    }
    chosen_.push_back({name});
  }

  void add_installed() {
    for (const TrackerClass& each : tracker_classes())
      if (is_installed_(each)) chosen_.push_back({each.name});
  }

  std::vector<ChosenTracker> take() { return std::move(chosen_); }

 private:
  const std::filesystem::path& logging_dir_;
  const IsInstalled& is_installed_;
  const std::function<void(const std::string&)>& note_;
  std::vector<ChosenTracker> chosen_;
};

}  // namespace

std::vector<TrackerClass> tracker_classes() {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  std::vector<TrackerClass> classes;
  const auto is_overridden = [&](const TrackerClass& own) {
    return std::ranges::any_of(
        all.classes, [&](const auto& each) { return each.name == own.name; });
  };
  for (const TrackerClass& own : own_classes())
    if (!is_overridden(own)) classes.push_back(own);
  classes.insert(classes.end(), all.classes.begin(), all.classes.end());
  return classes;
}

std::optional<TrackerClass> find_tracker_class(std::string_view name) {
  for (TrackerClass& each : tracker_classes())
    if (each.name == name) return std::move(each);
  return std::nullopt;
}

std::vector<ChosenTracker> filter_trackers(
    const std::vector<LogWith>& log_with,
    const std::filesystem::path& logging_dir,
    const IsInstalled& is_installed,
    const std::function<void(const std::string&)>& note) {
  Choice choice(logging_dir, is_installed, note);
  const auto name_of = [](const LogWith& each) {
    return std::get_if<std::string>(&each);
  };
  const bool has_all = std::ranges::any_of(log_with, [&](const LogWith& each) {
    return name_of(each) && *name_of(each) == kAll;
  });
  for (const LogWith& each : log_with) {
    if (const std::string* const name = name_of(each)) {
      if (!has_all) choice.add(*name);
    } else {
      choice.add(std::get<std::shared_ptr<GeneralTracker>>(each));
    }
  }
  if (has_all) choice.add_installed();
  return choice.take();
}

}  // namespace detail

void register_tracker_class(
    const std::string& name,
    TrackerFactory factory,
    const TrackerClassOptions& options) {
  if (name.empty() || name == detail::kAll || !factory) {
    throw ConfigError(detail::format(
        "[trackers] \"{}\" cannot be registered: a tracker class must have a "
        "name other than \"all\", and a function that makes trackers",
        detail::printable(name)));
  }
  if (detail::find_tracker_class(name)) {
    Logger().log(
        LogLevel::warning,
        "trackers",
        detail::format("the tracker \"{}\" is replaced by another one", name));
  }
  detail::TrackerClass added{
      name,
      options.requires_logging_directory,
      false,
      [make = std::move(factory)](const detail::TrackerRequest& request) {
        return make(
            {request.project_name,
             request.logging_dir.string(),
             request.init_kwargs});
      }};
  detail::Registered& all = detail::registered();
  const std::lock_guard lock(all.mutex);
  std::erase_if(
      all.classes, [&](const auto& each) { return each.name == name; });
  all.classes.push_back(std::move(added));
}

}  // namespace accelerate

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
    // The state changes even if it throws, since some of what it needs may be
    // gone by then.
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
