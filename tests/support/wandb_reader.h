#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

// Reads W&B's run files by the definitions of LevelDB's log format and of
// wandb_internal.proto, and shares no code with the library's writer.

namespace accelerate::testing {

/// The contents of a run's records. Values are trees: nested names are nested
/// objects; NaN and infinities are strings.
struct WandbRun {
  std::string run_id;
  std::string entity;
  std::string project;
  std::string name;
  std::string group;
  std::string job_type;
  std::string notes;
  std::vector<std::string> tags;
  nlohmann::json config = nlohmann::json::object();
  std::vector<nlohmann::json> history;
  nlohmann::json summary = nlohmann::json::object();
  std::vector<std::string> files;
  bool has_ended = false;
  std::int64_t num_records = 0;
};

/// Throws std::runtime_error if a checksum or a record's number is wrong, or
/// the file ends within a record.
WandbRun read_wandb_run(const std::filesystem::path& path);

/// The records of the file, as bytes.
std::vector<std::string> read_wandb_records(const std::filesystem::path& path);

}  // namespace accelerate::testing
