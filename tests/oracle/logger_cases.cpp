#include <mutex>
#include <optional>

#include <accelerate/accelerate.h>

#include "base/text/text.h"
#include "oracle/logger_cases.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

namespace logger_cases {

// Fills in the numbers of "value %d", as Python's loggers do.
std::string message_of(const Json& call) {
  std::string text = call.at("message");
  for (const Json& value : call.value("args", Json::array())) {
    const auto place = text.find("%d");
    text.replace(place, 2, std::to_string(value.get<int>()));
  }
  return text;
}

void log(const NamedLogger& logger, const Json& call) {
  const std::string level = call.at("level");
  const LogOptions options{
      .main_process_only = call.value("main_process_only", true),
      .in_order = call.value("in_order", false)};
  if (level == "warning_once") {
    logger.warning_once(options, "{}", message_of(call));
  } else {
    logger.log(parse_log_level(level), options, "{}", message_of(call));
  }
}

Json logger_rank(const Json& input, const WorldOptions& world) {
  Json lines = Json::array();
  WorldOptions options = world;
  const Json& variable = input.at("env");
  options.logger = Logger(
      [&](const LogRecord& record) {
        // The library logs under other names.
        if (record.area != "oracle") return;
        // Turns "warning: name: message" into the recorded "<LEVEL> <message>".
        const std::string line = format_log_line(record);
        lines.back().push_back(
            detail::to_upper(line.substr(0, line.find(':'))) + " " +
            std::string(record.message));
      },
      variable.is_null() ? LogLevel::warning
                         : parse_log_level(variable.get<std::string>()));
  const Accelerator accelerator({.world = options});
  try {
    const Json& given = input.at("log_level");
    const NamedLogger logger = accelerator.world().logger(
        "oracle",
        given.is_null()
            ? std::nullopt
            : std::optional(parse_log_level(given.get<std::string>())));
    for (const Json& call : input.at("calls")) {
      lines.push_back(Json::array());
      log(logger, call);
    }
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
  return {{"lines", lines}};
}

template <class T>
concept CountedByABar = requires(const Accelerator& accelerator, T first) {
  accelerator.progress(first);
};

Json progress_rank(const Json& input, const WorldOptions& world) {
  if (input.at("first_argument") == "boolean") {
    static_assert(!CountedByABar<bool> && CountedByABar<int>);
    return {{"error", "accelerator.progress(true) does not compile"}};
  }
  const Accelerator accelerator({.world = world});
  const auto given = [&](const char* name, bool otherwise) {
    const Json& value = input.at(name);
    return value.is_null() ? otherwise : value.get<bool>();
  };
  auto bar = accelerator.progress(
      input.at("total").get<int>(),
      {.disable = given("disable", false),
       .main_process_only = given("main_process_only", true)});
  std::int64_t count = 0;
  for ([[maybe_unused]] const std::int64_t item : bar) ++count;
  return {{"disabled", bar.is_disabled()}, {"count", count}};
}

Json on_each_rank(
    const Json& input,
    Json (*run)(const Json& input, const WorldOptions& world)) {
  const int count = input.at("num_processes");
  std::vector<Json> ranks(static_cast<std::size_t>(count));
  testing::run_on_ranks(count, [&](const WorldOptions& world) {
    ranks[static_cast<std::size_t>(*world.rank)] = run(input, world);
  });
  return {{"ranks", ranks}};
}

}  // namespace logger_cases

Json run_logger_case(const Json& input) {
  return logger_cases::on_each_rank(input, logger_cases::logger_rank);
}

Json run_progress_case(const Json& input) {
  return logger_cases::on_each_rank(input, logger_cases::progress_rank);
}

}  // namespace accelerate::oracle
