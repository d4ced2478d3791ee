#include <filesystem>
#include <fstream>

#include "base/files/files.h"
#include "cli/config/config_files.h"
#include "config/files/config_file.h"
#include "oracle/oracle.h"
#include "support/temporary_directory.h"

namespace accelerate::oracle {

namespace topic_config_files {

using detail::ConfigJson;
using detail::parse_config;

Json plain(const ConfigJson& values) { return Json::parse(values.dump()); }

std::filesystem::path written(
    const testing::TemporaryDirectory& directory,
    const Json& input) {
  const std::filesystem::path path =
      directory / ("config" + input.at("suffix").get<std::string>());
  std::ofstream(path) << input.at("text").get<std::string>();
  return path;
}

Json values_of(const std::filesystem::path& path) {
  return plain(detail::read_config_document(path).values);
}

Json run_load(const Json& input) {
  const testing::TemporaryDirectory directory;
  const auto document = detail::read_config_document(written(directory, input));
  return {{"fields", plain(detail::values_in_force(document))}};
}

Json run_update(const Json& input) {
  const testing::TemporaryDirectory directory;
  const auto path = written(directory, input);
  cli::update_config(path);
  // The formatting is Accelerate's own.
  return {{"values", values_of(path)}, {"text", nullptr}};
}

Json run_to_fsdp2(const Json& input) {
  const testing::TemporaryDirectory directory;
  auto path = written(directory, input);
  if (input.at("missing").get<bool>()) std::filesystem::remove(path);
  std::optional<std::filesystem::path> output;
  if (input.at("output").get<bool>()) output = directory / "out.yaml";
  if (output && input.at("output_exists").get<bool>()) {
    std::ofstream(*output) << "old: 1\n";
  }
  cli::convert_file_to_fsdp2(path, output, input.at("overwrite"));
  return {
      {"values", values_of(output.value_or(path))},
      {"input_changed",
       detail::read_file(path) != input.at("text").get<std::string>()}};
}

Json run_default(const Json& input) {
  const testing::TemporaryDirectory directory;
  const auto path = directory / "default_config.yaml";
  if (input.at("exists").get<bool>()) std::ofstream(path) << "{}";
  const bool is_written = detail::write_default_config(
      path, input.at("mixed_precision"), input.at("cuda_devices"));
  return {{"written", is_written}, {"values", values_of(path)}};
}

}  // namespace topic_config_files

Json run_config_files(const Json& input) {
  using namespace topic_config_files;
  const std::string kind = input.at("kind");
  if (kind == "load") return run_load(input);
  if (kind == "update") return run_update(input);
  if (kind == "to_fsdp2") return run_to_fsdp2(input);
  if (kind == "default") return run_default(input);
  throw NotBuilt("config_files: " + kind);
}

}  // namespace accelerate::oracle
