#pragma once

#include <any>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <accelerate/export.h>

// The interface of trackers, and their values. Needs no LibTorch; tracking.h
// adds tensors and the accelerator's side.

namespace accelerate {

struct NamedValue;

/// A value that is logged or configured: none, a boolean, an integer, a
/// floating-point number, a string, a list, or named values in order.
class ACCELERATE_API TrackedValue {
 public:
  /// A list.
  using List = std::vector<TrackedValue>;
  /// Named values in order.
  using Map = std::vector<NamedValue>;
  /// What it can be.
  using Content = std::variant<
      std::monostate,
      bool,
      std::int64_t,
      double,
      std::string,
      List,
      Map>;

  // Not inline, like StateDict's.
  TrackedValue();
  TrackedValue(const TrackedValue& other);
  TrackedValue(TrackedValue&& other) noexcept;
  TrackedValue& operator=(const TrackedValue& other);
  TrackedValue& operator=(TrackedValue&& other) noexcept;
  ~TrackedValue();
  template <std::same_as<bool> T>
  TrackedValue(T value) : content_(value) {}
  /// Throws ConfigError for an integer that does not fit into int64.
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  TrackedValue(T value) : content_(whole(value)) {}
  template <std::floating_point T>
  TrackedValue(T value) : content_(std::in_place_type<double>, value) {}
  TrackedValue(const char* value);
  TrackedValue(std::string_view value);
  TrackedValue(std::string value);
  TrackedValue(List value);
  TrackedValue(Map value);
  TrackedValue(std::initializer_list<NamedValue> values);

  /// The value; std::monostate is none.
  [[nodiscard]] const Content& content() const { return content_; }
  /// Whether it is none, Python's None.
  [[nodiscard]] bool is_none() const { return content_.index() == 0; }
  /// The value of a number or boolean; std::nullopt otherwise.
  [[nodiscard]] std::optional<double> number() const;
  /// The string; null if it is something else.
  [[nodiscard]] const std::string* text() const;
  /// The named values; null if it is something else.
  [[nodiscard]] const Map* map() const;
  /// The value as Python's str() writes it: "True", "1e-05", "[1, 2]", "{'a':
  /// 1}".
  [[nodiscard]] std::string str() const;

  bool operator==(const TrackedValue&) const;

 private:
  static std::int64_t whole(std::uint64_t value);
  static std::int64_t whole(unsigned int value) { return value; }
  template <std::signed_integral T>
  static std::int64_t whole(T value) {
    return value;
  }
  template <std::unsigned_integral T>
  static std::int64_t whole(T value) {
    return whole(static_cast<std::uint64_t>(value));
  }

  Content content_;
};

/// A value and its name.
struct NamedValue {
  /// The name.
  std::string name;
  /// The value.
  TrackedValue value;

  bool operator==(const NamedValue&) const = default;
};

/// Named values in the order in which they were given.
using TrackedValues = std::vector<NamedValue>;

/// When something was logged.
struct LogTime {
  /// The step that the program gave, if it gave one.
  std::optional<std::int64_t> step = std::nullopt;
  double seconds = 0;  ///< since 1970
};

/// Images of one size, or one image. Trackers have their own copies.
struct TrackedImages {
  /// The sizes in the order of `layout`.
  std::vector<std::int64_t> shape;
  /// "NHWC", "NCHW", "HWC", "CHW", "HW".
  std::string layout;
  /// Floats from 0 to 1, else bytes.
  bool is_float = false;
  /// Contiguous values, floats in the machine's byte order.
  std::string values;

  bool operator==(const TrackedImages&) const = default;
};

/// Rows under column names; each row has a value for each column.
struct TrackedTable {
  /// Names of the columns.
  std::vector<std::string> columns;
  /// The rows from top to bottom.
  std::vector<std::vector<TrackedValue>> rows;

  bool operator==(const TrackedTable&) const = default;
};

/// Counts of values between edges; there is one more edge than counts.
struct TrackedHistogram {
  /// The edges of the bins, ascending.
  std::vector<double> edges;
  /// Number of values in each bin.
  std::vector<double> counts;
  /// Facts about all values: extremes and sums.
  /// The largest value.
  /// The sum of squares.
  /// The sum.
  double min = 0, max = 0, sum = 0, sum_squares = 0;
  /// Number of values.
  std::int64_t num = 0;

  bool operator==(const TrackedHistogram&) const = default;
};

/// A run's configuration and hyperparameters.
struct TrackedConfig {
  /// By name, in the order given.
  TrackedValues values;
};

/// A figure as an SVG document.
struct TrackedFigure {
  /// The document.
  std::string svg;
};

/// A file, or a directory with all its contents, for a directory of the run.
struct TrackedArtifact {
  /// The file or directory to copy.
  std::string path;
  /// Where in the run it goes; empty: its top.
  std::string directory;
};

/// Settings by tracker name: {{"wandb", {{"entity", "team"}}}}.
using TrackerKwargs = std::map<std::string, TrackedValues, std::less<>>;

/// One thing that is logged, of any kind.
struct TrackedItem {
  /// What can be logged.
  using Content = std::variant<
      TrackedConfig,
      TrackedValues,
      TrackedImages,
      TrackedTable,
      TrackedHistogram,
      TrackedFigure,
      TrackedArtifact>;

  /// When.
  LogTime time = {};
  /// What.
  Content content = {};
  /// The name of the images, table, histogram or figure.
  std::string name = {};
  /// log_kwargs; null if there are none.
  std::shared_ptr<const TrackerKwargs> kwargs = nullptr;

  /// The log_kwargs of the tracker of that name.
  [[nodiscard]] ACCELERATE_API const TrackedValues& options(
      std::string_view tracker) const;
};

/// Sends a run's values to a tool. Derive from it for a tool of your own:
/// name() is required, everything else has a default. All functions except the
/// constructor are called on one thread, which is not the training loop's; an
/// exception becomes one warning, and training continues.
class ACCELERATE_API GeneralTracker {
 public:
  GeneralTracker() = default;
  GeneralTracker(const GeneralTracker&) = delete;
  GeneralTracker& operator=(const GeneralTracker&) = delete;
  virtual ~GeneralTracker();

  /// The name by which the program finds the tracker.
  [[nodiscard]] virtual std::string name() const = 0;
  /// Whether it writes files below ProjectConfiguration::logging_dir.
  [[nodiscard]] virtual bool requires_logging_directory() const;
  /// Whether the tool has one writer per run; otherwise programs can make one
  /// on each rank themselves. init_trackers() makes them on the main process.
  [[nodiscard]] virtual bool main_process_only() const;

  /// Begins the run. May throw: init_trackers() then throws as well.
  virtual void start();
  /// Called once, after start(), with the run's configuration and
  /// hyperparameters.
  virtual void store_init_configuration(const TrackedValues& values);
  /// Logs values; `options` are the log_kwargs of this tracker.
  virtual void log(
      const TrackedValues& values,
      const LogTime& time,
      const TrackedValues& options);
  /// Logs an item of any kind. Returns false if the tool does not support its
  /// kind, which is reported once. By default, configurations and values go to
  /// the functions above, and nothing else is supported.
  virtual bool log_item(const TrackedItem& item);
  /// Makes what was logged visible to readers.
  virtual void flush();
  /// Ends the run. Nothing is called after it.
  virtual void finish();
  /// The tool's own object or handle; empty if there is none.
  [[nodiscard]] virtual std::any tracker();

  // Convenience functions that call log_item().

  /// Logs images. Returns what log_item() does.
  bool log_images(
      const std::string& name,
      TrackedImages images,
      const LogTime& time,
      const TrackedValues& options = {});
  /// Logs a table. Returns what log_item() does.
  bool log_table(
      const std::string& name,
      TrackedTable table,
      const LogTime& time,
      const TrackedValues& options = {});
  /// Logs a histogram. Returns what log_item() does.
  bool log_histogram(
      const std::string& name,
      TrackedHistogram histogram,
      const LogTime& time,
      const TrackedValues& options = {});
  /// Logs a figure. Returns what log_item() does.
  bool log_figure(
      const std::string& name,
      std::string svg,
      const LogTime& time,
      const TrackedValues& options = {});
  /// Logs a file or directory. Returns what log_item() does.
  bool log_artifact(const std::string& path, const std::string& directory);

 private:
  bool log_named(
      const std::string& name,
      TrackedItem::Content content,
      const LogTime& time,
      const TrackedValues& options);
};

/// A tracker to log with: the name of one of the library's or of a registered
/// class, "all", or an object that the program has made.
using LogWith = std::variant<std::string, std::shared_ptr<GeneralTracker>>;

/// What a tracker of a registered class is made from.
struct TrackerArguments {
  /// The name given to init_trackers().
  std::string project_name;
  /// Empty if there is none.
  std::string logging_dir;
  /// init_kwargs of this tracker.
  TrackedValues init_kwargs;
};

/// Makes a tracker of a registered class; called on the main process by
/// Accelerator::init_trackers(). What it throws is thrown there.
using TrackerFactory =
    std::function<std::shared_ptr<GeneralTracker>(const TrackerArguments&)>;

struct TrackerClassOptions {
  /// Reject the tracker if there is no ProjectConfiguration::logging_dir.
  bool requires_logging_directory = false;
};

/// Makes a tracker available by name to every Accelerator of this process that
/// is made afterwards. A name that is already taken is replaced, with a
/// warning. Throws ConfigError without a name or factory, and for "all".
ACCELERATE_API void register_tracker_class(
    const std::string& name,
    TrackerFactory factory,
    const TrackerClassOptions& options = {});

}  // namespace accelerate
