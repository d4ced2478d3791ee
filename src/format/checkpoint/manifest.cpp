#include "format/checkpoint/manifest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/limits.h"
#include "base/text/encoding.h"
#include "base/text/json_text.h"
#include "base/text/text.h"
#include "format/tensors/box_cover.h"

namespace accelerate::detail {

namespace {

using Json = nlohmann::json;
using safetensors::Box;
using safetensors::Shape;

// The file consists of kStart, 16 digits, kMiddle, the body and kEnd; the
// digits are the body's checksum.
constexpr std::string_view kStart = "{\"xxh3_64\": \"";
constexpr std::string_view kMiddle = "\",\n\"manifest\": ";
constexpr std::string_view kEnd = "}\n";
constexpr std::size_t kDigits = 16;
constexpr std::string_view kFormat = "accelerate.cpp checkpoint";

class Parser {
 public:
  explicit Parser(const std::string& name, bool is_complete = true)
      : name_(name), is_complete_(is_complete) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw CheckpointError(
        format("[checkpoint] {} is damaged: {}", name_, what));
  }

  [[nodiscard]] Json parse(std::string_view text) const {
    ParsedJson parsed = parse_json(text);
    if (!parsed.complaint.empty()) {
      fail(format("it is not JSON: {}", parsed.complaint));
    }
    return std::move(parsed.value);
  }

  [[nodiscard]] std::uint64_t checksum(std::string_view text) const {
    std::uint64_t value = 0;
    if (text.size() != kDigits) fail("a checksum does not have 16 digits");
    for (const char digit : text) {
      value <<= 4U;
      if (digit >= '0' && digit <= '9') {
        value += static_cast<std::uint64_t>(digit - '0');
      } else if (digit >= 'a' && digit <= 'f') {
        value += static_cast<std::uint64_t>(digit - 'a' + 10);
      } else {
        fail("a checksum has characters other than 0-9 and a-f");
      }
    }
    return value;
  }

  [[nodiscard]] const Json& member(const Json& object, const char* key) const {
    if (!object.is_object()) fail(format("\"{}\" is not in an object", key));
    const auto found = object.find(key);
    if (found == object.end()) fail(format("\"{}\" is missing", key));
    return *found;
  }
  [[nodiscard]] std::string text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_string()) fail(format("\"{}\" is not a string", key));
    return value.get<std::string>();
  }
  [[nodiscard]] std::uint64_t number(const Json& value, const char* what)
      const {
    if (!value.is_number_unsigned())
      fail(format("{} is not a whole number", what));
    return value.get<std::uint64_t>();
  }
  [[nodiscard]] const Json& object(const Json& parent, const char* key) const {
    const Json& value = member(parent, key);
    if (!value.is_object()) fail(format("\"{}\" is not an object", key));
    return value;
  }
  [[nodiscard]] Shape shape(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_array() || value.size() > kMostDimensions) {
      fail(format(
          "\"{}\" is not a list of at most {} sizes", key, kMostDimensions));
    }
    Shape sizes;
    for (const Json& size : value) sizes.push_back(number(size, key));
    return sizes;
  }

  [[nodiscard]] FileRecord file(const Json& json) const {
    FileRecord record;
    record.num_bytes = number(member(json, "bytes"), "bytes");
    const Json& checksums = member(json, "checksums");
    if (!checksums.is_array()) fail("\"checksums\" is not a list");
    const std::uint64_t chunks = record.num_bytes / kChunkBytes +
        (record.num_bytes % kChunkBytes == 0 ? 0 : 1);
    if (checksums.size() != chunks) {
      fail("a file must have one checksum per chunk, but does not");
    }
    for (const Json& each : checksums) {
      if (!each.is_string()) fail("a checksum is not a string");
      record.checksums.push_back(checksum(each.get_ref<const std::string&>()));
    }
    return record;
  }

  [[nodiscard]] SavedTensor tensor(
      const std::string& name,
      const Json& json,
      const Manifest& manifest) const {
    SavedTensor tensor;
    const auto dtype = safetensors::parse_dtype(text(json, "dtype"));
    if (!dtype) fail("a dtype is unknown");
    tensor.dtype = *dtype;
    tensor.shape = shape(json, "shape");
    if (!safetensors::bytes_of(tensor.dtype, tensor.shape)) {
      fail("a tensor has an impossible size");
    }
    const Json& boxes = member(json, "boxes");
    if (!boxes.is_array()) fail("\"boxes\" is not a list");
    for (const Json& each : boxes) {
      SavedBox saved{
          text(each, "file"), {Shape(tensor.shape.size(), 0), tensor.shape}};
      if (each.contains("begin")) saved.box.begin = shape(each, "begin");
      if (each.contains("size")) saved.box.size = shape(each, "size");
      if (each.contains("row")) {
        if (tensor.shape.empty()) fail("a number has rows");
        saved.row = number(member(each, "row"), "row");
      }
      if (!manifest.files.contains(saved.file)) {
        fail(format(
            "a tensor lies in a file that is not listed: {}",
            printable(saved.file)));
      }
      tensor.boxes.push_back(std::move(saved));
    }
    std::vector<const Box*> placed;
    for (const SavedBox& saved : tensor.boxes) placed.push_back(&saved.box);
    const auto complaint =
        complaint_of_boxes(tensor.shape, placed, is_complete_);
    if (complaint) fail(format("{} (\"{}\")", *complaint, printable(name)));
    return tensor;
  }

 private:
  const std::string& name_;
  bool is_complete_;
};

// True for a path inside the directory, in canonical form.
bool is_inside(const std::string& name) {
  if (name.find('\0') != std::string::npos) return false;
  for (const std::string& step : split(name, '/')) {
    if (step.empty() || step == "." || step == "..") return false;
  }
  return !name.empty();
}

Json json_of(const SavedTensor& tensor) {
  Json boxes = Json::array();
  for (const SavedBox& saved : tensor.boxes) {
    Json box{{"file", saved.file}};
    if (saved.box.size != tensor.shape) {
      box["begin"] = saved.box.begin;
      box["size"] = saved.box.size;
    }
    if (saved.row) box["row"] = *saved.row;
    boxes.push_back(std::move(box));
  }
  return {
      {"dtype", std::string(safetensors::name_of(tensor.dtype))},
      {"shape", tensor.shape},
      {"boxes", std::move(boxes)}};
}

std::string body_of(const Manifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, record] : manifest.files) {
    Json checksums = Json::array();
    for (const std::uint64_t checksum : record.checksums) {
      checksums.push_back(hexadecimal(checksum));
    }
    files[name] = {
        {"bytes", record.num_bytes}, {"checksums", std::move(checksums)}};
  }
  Json sections = Json::object();
  for (const auto& [section, tensors] : manifest.sections) {
    Json& entries = sections[section] = Json::object();
    for (const auto& [name, tensor] : tensors) entries[name] = json_of(tensor);
  }
  Json body{
      {"format", kFormat},
      {"version", kManifestVersion},
      {"writer", manifest.writer},
      {"created", manifest.created},
      {"iteration", manifest.iteration},
      {"num_processes", manifest.num_processes},
      {"chunk_bytes", kChunkBytes},
      {"files", std::move(files)},
      {"parts", std::move(sections)},
      {"aliases", manifest.aliases}};
  if (manifest.is_part) body["is_part"] = true;
  try {
    return body.dump(1);
  } catch (const Json::exception&) {
    throw ConfigError(
        "[checkpoint] a name of a tensor or parameter is not UTF-8, which JSON "
        "requires; rename it");
  }
}

// Whether `json`, the body, describes a part.
bool is_part(const Json& json, const Parser& parser) {
  const auto found = json.find("is_part");
  if (found == json.end()) return false;
  if (!found->is_boolean()) parser.fail("\"is_part\" is not true or false");
  return found->get<bool>();
}

// `json` is the body. Throws as parse_manifest.
Manifest manifest_of(const Json& json, const Parser& parser) {
  Manifest manifest;
  manifest.writer = parser.text(json, "writer");
  manifest.created = parser.text(json, "created");
  const Json& iteration = parser.member(json, "iteration");
  if (!iteration.is_number_integer()) parser.fail("iteration is not a number");
  manifest.iteration = iteration.get<std::int64_t>();
  manifest.num_processes = static_cast<int>(std::min<std::uint64_t>(
      parser.number(parser.member(json, "num_processes"), "num_processes"),
      1U << 30U));
  manifest.is_part = is_part(json, parser);
  for (const auto& [file, record] : parser.object(json, "files").items()) {
    if (!is_inside(file) || file == kManifestName) {
      parser.fail("it lists a file that is not inside the directory");
    }
    manifest.files.emplace(file, parser.file(record));
  }
  for (const auto& [section, tensors] : parser.object(json, "parts").items()) {
    if (!tensors.is_object()) parser.fail("a section is not an object");
    SavedTensors& saved = manifest.sections[section];
    for (const auto& [key, tensor] : tensors.items()) {
      saved.emplace(key, parser.tensor(key, tensor, manifest));
    }
  }
  for (const auto& [section, names] : parser.object(json, "aliases").items()) {
    if (!names.is_object()) parser.fail("aliases are not an object");
    for (const auto& [alias, name] : names.items()) {
      if (!name.is_string()) parser.fail("an alias is not a string");
      manifest.aliases[section][alias] = name.get<std::string>();
    }
  }
  return manifest;
}

}  // namespace

std::uint64_t checksum_of(std::string_view bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string manifest_text(const Manifest& manifest) {
  const std::string text = body_of(manifest);
  return format(
      "{}{}{}{}{}",
      kStart,
      hexadecimal(checksum_of(text)),
      kMiddle,
      text,
      kEnd);
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  const Parser parser(name);
  constexpr std::size_t kBodyBegin = kStart.size() + kDigits + kMiddle.size();
  if (text.size() < kBodyBegin + kEnd.size() || !text.starts_with(kStart) ||
      !text.ends_with(kEnd) ||
      text.substr(kStart.size() + kDigits, kMiddle.size()) != kMiddle) {
    parser.fail("it does not begin and end as a manifest");
  }
  const std::string_view body =
      text.substr(kBodyBegin, text.size() - kBodyBegin - kEnd.size());
  if (parser.checksum(text.substr(kStart.size(), kDigits)) !=
      checksum_of(body)) {
    parser.fail("its checksum does not match");
  }
  const Json json = parser.parse(body);
  if (parser.text(json, "format") != kFormat) {
    parser.fail("it is not the manifest of a checkpoint");
  }
  const std::uint64_t version =
      parser.number(parser.member(json, "version"), "version");
  if (version != static_cast<std::uint64_t>(kManifestVersion)) {
    throw CheckpointError(format(
        "[checkpoint] {} has format version {}, written by {}, but this "
        "program reads version {}{}",
        name,
        version,
        printable(parser.text(json, "writer")),
        kManifestVersion,
        version > kManifestVersion ? ": update accelerate.cpp" : ""));
  }
  if (parser.number(parser.member(json, "chunk_bytes"), "chunk_bytes") !=
      kChunkBytes) {
    parser.fail("chunks have a size other than this version's");
  }
  return manifest_of(json, Parser(name, !is_part(json, parser)));
}

std::string fragment_text(const Manifest& fragment) {
  return body_of(fragment);
}

Manifest parse_fragment(std::string_view text) {
  const std::string name = "the fragment of a rank";
  const Parser parser(name, /*is_complete=*/false);
  const Json json = parser.parse(text);
  return manifest_of(json, parser);
}

void merge_into(Manifest& manifest, Manifest fragment) {
  manifest.files.merge(fragment.files);
  for (auto& [section, tensors] : fragment.sections) {
    SavedTensors& known = manifest.sections[section];
    for (auto& [name, tensor] : tensors) {
      const auto [place, is_new] = known.try_emplace(name, tensor);
      if (is_new) continue;
      auto& boxes = place->second.boxes;
      for (SavedBox& box : tensor.boxes) {
        const bool is_known = manifest.is_part &&
            std::ranges::any_of(boxes, [&](const auto& other) {
                                return other.box.begin == box.box.begin &&
                                    other.box.size == box.box.size;
                              });
        if (!is_known) boxes.push_back(std::move(box));
      }
    }
  }
  for (auto& [section, aliases] : fragment.aliases) {
    manifest.aliases[section].merge(aliases);
  }
}

Manifest read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kManifestName;
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) {
    throw CheckpointError(format(
        "[checkpoint] {} has no {}: it is not a checkpoint of this library, or "
        "was not finished",
        directory.string(),
        kManifestName));
  }
  Manifest manifest = parse_manifest(read_file(path), path.string());
  std::vector<std::string> complaints;
  for (const auto& [name, record] : manifest.files) {
    const std::uintmax_t size =
        std::filesystem::file_size(directory / name, code);
    if (code) {
      complaints.push_back(format("{} is missing", printable(name)));
    } else if (size != record.num_bytes) {
      complaints.push_back(format(
          "{} has {} bytes, not {}", printable(name), size, record.num_bytes));
    }
  }
  if (!complaints.empty()) {
    throw CheckpointError(format(
        "[checkpoint] {} is torn: {}",
        directory.string(),
        join(complaints, "; ")));
  }
  return manifest;
}

}  // namespace accelerate::detail
