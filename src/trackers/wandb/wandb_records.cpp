#include "trackers/wandb/wandb_records.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cmath>
#include <string_view>
#include <thread>
#include <utility>

#include <protozero/pbf_writer.hpp>

#include "base/text/text.h"
#include "format/journal/journal_entry.h"
#include "trackers/media/utf8_text.h"
#include "trackers/wandb/wandb_values.h"

namespace accelerate::detail {

namespace {

using protozero::pbf_writer;
using Field = protozero::pbf_tag_type;

// Fields of wandb_internal.Record.
constexpr Field kRecordNum = 1, kRecordHistory = 2, kRecordSummary = 3,
                kRecordConfig = 5, kRecordFiles = 6, kRecordTelemetry = 11,
                kRecordRun = 17, kRecordExit = 18, kRecordHeader = 21,
                kRecordEnvironment = 26, kRecordInfo = 200;
constexpr Field kInfoStreamId = 1;
constexpr Field kHeaderVersion = 1, kVersionProducer = 1,
                kVersionMinConsumer = 2;
constexpr Field kRunId = 1, kRunEntity = 2, kRunProject = 3, kRunConfig = 4,
                kRunGroup = 6, kRunJobType = 7, kRunDisplayName = 8,
                kRunNotes = 9, kRunTag = 10, kRunHost = 13, kRunStartTime = 17;
constexpr Field kTimestampSeconds = 1, kTimestampNanos = 2;
constexpr Field kTelemetryFeature = 3, kFeatureFinish = 2, kFeatureOffline = 4;
// Config, summary and history are lists of items with these fields.
constexpr Field kUpdates = 1, kItemKey = 1, kItemNestedKey = 2,
                kItemValueJson = 16;
constexpr Field kHistoryStep = 2, kStepNum = 1;
constexpr Field kFilesItem = 1, kFilePath = 1, kFilePolicy = 2;
constexpr Field kExitCode = 1, kExitRuntime = 2;
constexpr Field kEnvironmentOs = 1, kEnvironmentStart = 3, kEnvironmentArgs = 5,
                kEnvironmentProgram = 6, kEnvironmentRoot = 11,
                kEnvironmentHost = 12, kEnvironmentExecutable = 14,
                kEnvironmentCpus = 16, kEnvironmentLogicalCpus = 17,
                kEnvironmentMemory = 21, kEnvironmentWriter = 199,
                kMemoryTotal = 1;

constexpr std::int32_t kPolicyNow = 0;

void add_text(pbf_writer& message, Field field, std::string_view text) {
  if (!text.empty()) message.add_string(field, utf8_text(text));
}

void add_timestamp(pbf_writer& message, Field field, double time) {
  const double seconds = std::floor(time);
  pbf_writer timestamp(message, field);
  timestamp.add_int64(kTimestampSeconds, static_cast<std::int64_t>(seconds));
  timestamp.add_int32(
      kTimestampNanos, static_cast<std::int32_t>((time - seconds) * 1e9));
}

// An item of a history or a summary; items of a configuration have one name, in
// a separate field.
void add_item(
    pbf_writer& message,
    const std::vector<std::string>& names,
    const nlohmann::ordered_json& value) {
  pbf_writer item(message, kUpdates);
  for (const std::string& name : names)
    item.add_string(kItemNestedKey, utf8_text(name));
  item.add_string(kItemValueJson, wandb_json(value));
}

std::string config_message(const TrackedValues& values) {
  std::string message;
  pbf_writer config(message);
  for (const NamedValue& each : values) {
    pbf_writer item(config, kUpdates);
    item.add_string(kItemKey, utf8_text(each.name));
    item.add_string(kItemValueJson, wandb_json(wandb_value(each.value)));
  }
  return message;
}

std::vector<std::string> command_line() {
  std::string bytes;
  // A kernel file; without it, there are no arguments.
  if (std::FILE* const file = std::fopen("/proc/self/cmdline", "r")) {
    for (int each = std::fgetc(file); each != EOF; each = std::fgetc(file))
      bytes += static_cast<char>(each);
    std::fclose(file);
  }
  if (!bytes.empty() && bytes.back() == '\0') bytes.pop_back();
  return bytes.empty() ? std::vector<std::string>{} : split(bytes, '\0');
}

}  // namespace

WandbEnvironment WandbEnvironment::current() {
  WandbEnvironment result;
  utsname system{};
  if (::uname(&system) == 0) {
    result.host = system.nodename;
    result.operating_system = format("{}-{}", system.sysname, system.release);
  }
  std::error_code ignored;
  result.program =
      std::filesystem::read_symlink("/proc/self/exe", ignored).string();
  result.arguments = command_line();
  if (!result.arguments.empty())
    result.arguments.erase(result.arguments.begin());
  result.directory = std::filesystem::current_path(ignored).string();
  result.num_processors = std::thread::hardware_concurrency();
  const long num_pages = ::sysconf(_SC_PHYS_PAGES);
  const long page_bytes = ::sysconf(_SC_PAGESIZE);
  if (num_pages > 0 && page_bytes > 0) {
    result.memory_bytes = static_cast<std::uint64_t>(num_pages) *
        static_cast<std::uint64_t>(page_bytes);
  }
  return result;
}

WandbRecords::WandbRecords(
    const std::filesystem::path& path,
    const WandbSettings& settings,
    const WandbEnvironment& environment,
    double begin)
    : log_(path), run_id_(settings.run_id), begin_(begin) {
  std::string header;
  {
    pbf_writer writer(header);
    pbf_writer version(writer, kHeaderVersion);
    version.add_string(kVersionProducer, "accelerate.cpp");
    // The oldest wandb that W&B's own files of this version require.
    version.add_string(kVersionMinConsumer, "0.70.0");
  }
  add(kRecordHeader, header);
  add_run(settings, environment.host);
  add_environment(environment);
  add_telemetry(false);
  flush();
}

void WandbRecords::add(std::uint32_t field, const std::string& message) {
  std::string record;
  {
    pbf_writer writer(record);
    writer.add_int64(kRecordNum, ++num_records_);
    writer.add_message(field, message);
    pbf_writer info(writer, kRecordInfo);
    info.add_string(kInfoStreamId, run_id_);
  }
  log_.append(record);
}

void WandbRecords::add_run(
    const WandbSettings& settings,
    const std::string& host) {
  std::string message;
  {
    pbf_writer run(message);
    add_text(run, kRunId, settings.run_id);
    add_text(run, kRunEntity, settings.entity);
    add_text(run, kRunProject, settings.project);
    run.add_message(kRunConfig, config_message(settings.config));
    add_text(run, kRunGroup, settings.group);
    add_text(run, kRunJobType, settings.job_type);
    add_text(run, kRunDisplayName, settings.name);
    add_text(run, kRunNotes, settings.notes);
    for (const std::string& tag : settings.tags) add_text(run, kRunTag, tag);
    add_text(run, kRunHost, host);
    add_timestamp(run, kRunStartTime, begin_);
  }
  add(kRecordRun, message);
}

void WandbRecords::add_environment(const WandbEnvironment& environment) {
  std::string message;
  {
    pbf_writer writer(message);
    add_text(writer, kEnvironmentOs, environment.operating_system);
    add_timestamp(writer, kEnvironmentStart, begin_);
    for (const std::string& each : environment.arguments)
      writer.add_string(kEnvironmentArgs, utf8_text(each));
    add_text(writer, kEnvironmentProgram, environment.program);
    add_text(writer, kEnvironmentRoot, environment.directory);
    add_text(writer, kEnvironmentHost, environment.host);
    add_text(writer, kEnvironmentExecutable, environment.program);
    writer.add_uint32(kEnvironmentCpus, environment.num_processors);
    writer.add_uint32(kEnvironmentLogicalCpus, environment.num_processors);
    {
      pbf_writer memory(writer, kEnvironmentMemory);
      memory.add_uint64(kMemoryTotal, environment.memory_bytes);
    }
    add_text(writer, kEnvironmentWriter, run_id_);
  }
  add(kRecordEnvironment, message);
}

void WandbRecords::add_config(const TrackedValues& values) {
  add(kRecordConfig, config_message(values));
}

void WandbRecords::add_history(const WandbHistory::Row& row, double runtime) {
  std::string message;
  {
    pbf_writer history(message);
    visit_wandb_leaves(row.values, [&](const auto& names, const auto& value) {
      add_item(history, names, value);
    });
    add_item(history, {"_timestamp"}, row.seconds);
    add_item(history, {"_runtime"}, runtime);
    add_item(history, {"_step"}, row.step);
    std::string step;
    pbf_writer(step).add_int64(kStepNum, row.step);
    history.add_message(kHistoryStep, step);
  }
  add(kRecordHistory, message);
}

void WandbRecords::add_summary(const nlohmann::ordered_json& values) {
  std::string message;
  {
    pbf_writer summary(message);
    visit_wandb_leaves(values, [&](const auto& names, const auto& value) {
      // None values do not change a summary.
      if (!value.is_null()) add_item(summary, names, value);
    });
  }
  add(kRecordSummary, message);
}

void WandbRecords::add_file(const std::string& path) {
  std::string message;
  {
    pbf_writer files(message);
    pbf_writer item(files, kFilesItem);
    item.add_string(kFilePath, utf8_text(path));
    item.add_enum(kFilePolicy, kPolicyNow);
  }
  add(kRecordFiles, message);
}

void WandbRecords::add_telemetry(bool has_finished) {
  std::string message;
  {
    pbf_writer telemetry(message);
    pbf_writer feature(telemetry, kTelemetryFeature);
    if (has_finished) feature.add_bool(kFeatureFinish, true);
    feature.add_bool(kFeatureOffline, true);
  }
  add(kRecordTelemetry, message);
}

void WandbRecords::add_exit(double runtime) {
  // On reaching this record, earlier versions of `wandb sync` send the
  // configuration.
  add_telemetry(true);
  std::string message;
  {
    pbf_writer exit(message);
    exit.add_int32(kExitCode, 0);
    exit.add_int32(kExitRuntime, static_cast<std::int32_t>(runtime));
  }
  add(kRecordExit, message);
}

std::optional<WandbHistory::Row> WandbHistory::advance(
    std::optional<std::int64_t> step) {
  if (!step || *step <= row_.step) return std::nullopt;
  return take(*step);
}

void WandbHistory::add(const nlohmann::ordered_json& values, double seconds) {
  merge_wandb_values(row_.values, values);
  row_.seconds = seconds;
}

std::optional<WandbHistory::Row> WandbHistory::commit() {
  return take(step_after(row_.step));
}

std::optional<WandbHistory::Row> WandbHistory::take(std::int64_t next_step) {
  Row row = std::exchange(row_, Row{.step = next_step});
  if (row.values.empty()) return std::nullopt;
  return row;
}

}  // namespace accelerate::detail
