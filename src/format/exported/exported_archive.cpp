#include "format/exported/exported_archive.h"

#include <string_view>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/limits.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/exported/tensor_table.h"
#include "format/torch/zip_reader.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormatEntry = "/archive_format";
constexpr std::string_view kModels = "/models/";
constexpr std::string_view kJson = ".json";
/// Where the second graph is; older files have it among the models, where
/// torch.export.load() wants weights with it.
constexpr std::string_view kEvaluation = "extra/accelerate_eval.json";
constexpr std::string_view kOlderEvaluation = "models/eval.json";
/// The newest format of extra/accelerate.json that is known.
constexpr std::int64_t kFactsFormat = 1;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

struct ExportedArchive::State {
  std::optional<MappedFile> file;
  std::span<const std::byte> bytes;
  std::string path;
  ZipReader zip;
  /// All entries are below this directory.
  std::string root;

  State(std::span<const std::byte> all, const std::string& where)
      : bytes(all), path(where), zip(all, where) {
    for (const auto& [name, entry] : zip.entries()) {
      if (name.ends_with(kFormatEntry)) {
        root = name.substr(0, name.size() - kFormatEntry.size());
      }
    }
    if (root.empty() || text("archive_format") != "pt2") {
      throw CheckpointError(format(
          "[exported] {} must be an archive of torch.export.save(), but is a "
          "different one",
          path));
    }
    if (const auto order = optional_text("byteorder");
        order && *order != "little") {
      throw CheckpointError(format(
          "[exported] {} must be little-endian, but is {}",
          path,
          printable(*order)));
    }
    if (const auto version = optional_text("archive_version");
        version && trim(*version) != "0") {
      throw ConfigError(format(
          "[exported] {} must have archive version 0, but has version {}",
          path,
          printable(*version)));
    }
  }

  [[nodiscard]] std::string full(std::string_view name) const {
    return format("{}/{}", root, name);
  }
  [[nodiscard]] bool has(std::string_view name) const {
    return zip.entries().contains(full(name));
  }
  [[nodiscard]] std::string_view text(std::string_view name) const {
    zip.verify(full(name));
    return text_of(zip.at(full(name)).bytes);
  }
  [[nodiscard]] std::optional<std::string_view> optional_text(
      std::string_view name) const {
    if (!has(name)) return std::nullopt;
    return text(name);
  }

  /// A program with weights that is called "eval" is the user's.
  [[nodiscard]] std::string_view evaluation_name() const {
    const bool is_older =
        has(kOlderEvaluation) && !has("data/weights/eval_weights_config.json");
    return is_older ? kOlderEvaluation : kEvaluation;
  }

  [[nodiscard]] ExportedTensors tensors(
      const std::string& directory,
      const std::string& model) const {
    const auto table = optional_text(
        format("data/{}/{}_{}_config.json", directory, model, directory));
    if (!table) return {};
    return parse_tensor_table(
        *table,
        [&](const std::string& entry)
            -> std::optional<std::span<const std::byte>> {
          const std::string name = format("data/{}/{}", directory, entry);
          if (!has(name)) return std::nullopt;
          return zip.at(full(name)).bytes;
        },
        path);
  }
};

ExportedArchive::ExportedArchive(const std::filesystem::path& path) {
  MappedFile file(path);
  const auto bytes = file.bytes();
  state_ = std::make_unique<State>(bytes, path.string());
  state_->file.emplace(std::move(file));
}

ExportedArchive::ExportedArchive(
    std::span<const std::byte> bytes,
    const std::string& name)
    : state_(std::make_unique<State>(bytes, name)) {}

ExportedArchive::~ExportedArchive() = default;

std::vector<std::string> ExportedArchive::models() const {
  std::vector<std::string> names;
  const std::string directory = state_->root + std::string(kModels);
  for (const auto& [name, entry] : state_->zip.entries()) {
    if (!name.starts_with(directory) || !name.ends_with(kJson)) continue;
    if (name == state_->full(state_->evaluation_name())) continue;
    names.push_back(name.substr(
        directory.size(), name.size() - directory.size() - kJson.size()));
  }
  return names;
}

ExportedProgram ExportedArchive::program(const std::string& model) const {
  const auto text = state_->optional_text(format("models/{}.json", model));
  if (!text) {
    std::vector<std::string> shown = models();
    if (shown.size() > 8) shown.resize(8);
    throw ConfigError(format(
        "[exported] the program must be one of {} ({}), but is '{}'",
        state_->path,
        printable(join(shown, ", ")),
        printable(model)));
  }
  return parse_exported_program(*text, state_->path);
}

std::optional<ExportedProgram> ExportedArchive::evaluation() const {
  const auto text = state_->optional_text(state_->evaluation_name());
  if (!text) return std::nullopt;
  return parse_exported_program(*text, state_->path);
}

ExportedTensors ExportedArchive::weights(const std::string& model) const {
  return state_->tensors("weights", model);
}

ExportedTensors ExportedArchive::constants(const std::string& model) const {
  return state_->tensors("constants", model);
}

std::optional<ExportedFacts> ExportedArchive::facts() const {
  const auto text = state_->optional_text("extra/accelerate.json");
  if (!text) return std::nullopt;
  const ParsedJson parsed = parse_json(*text);
  std::string complaint = parsed.complaint;
  if (complaint.empty()) {
    try {
      if (const auto version = parsed.value.value("format", kFactsFormat);
          version > kFactsFormat) {
        throw ConfigError(format(
            "[exported] extra/accelerate.json of {} must have format {}, but "
            "has format {}: a newer accelerate_cpp_export.py wrote it",
            state_->path,
            kFactsFormat,
            version));
      }
      ExportedFacts facts;
      for (const Json& module : parsed.value.at("modules")) {
        const auto name = module.at(0).get<std::string>();
        if (name.size() > kMostNameBytes) continue;
        facts.modules.emplace_back(name, module.at(1).get<std::string>());
      }
      facts.evaluated = parsed.value.value("evaluated", facts.evaluated);
      facts.autocast = parsed.value.value("autocast", "");
      facts.tp_plan = parsed.value.value("tp_plan", facts.tp_plan);
      return facts;
    } catch (const Json::exception& error) {
      complaint = json_complaint(error);
    }
  }
  throw CheckpointError(format(
      "[exported] extra/accelerate.json of {} cannot be read: {}",
      state_->path,
      complaint));
}

std::span<const std::byte> ExportedArchive::bytes() const {
  return state_->bytes;
}

}  // namespace accelerate::detail
