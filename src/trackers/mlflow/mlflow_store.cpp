#include "trackers/mlflow/mlflow_store.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <system_error>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "trackers/files/run_files.h"

namespace accelerate::detail {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kDirectory = "mlruns";
constexpr std::string_view kDatabase = "mlflow.db";

/// "file" of "file:///runs"; empty for a path.
std::string scheme_of(std::string_view uri) {
  const std::size_t colon = uri.find(':');
  if (colon == std::string_view::npos || colon < 2) return "";
  const std::string_view scheme = uri.substr(0, colon);
  for (const char letter : scheme) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) == 0 && letter != '+' && letter != '-') return "";
  }
  return to_lower(scheme);
}

/// Decodes percent-encoded bytes.
std::string unescaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1, 2);
    if (text[i] == '%' && digits.size() == 2 &&
        std::isxdigit(static_cast<unsigned char>(digits[0])) != 0 &&
        std::isxdigit(static_cast<unsigned char>(digits[1])) != 0) {
      result += static_cast<char>(std::stoi(std::string(digits), nullptr, 16));
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

bool has_runs(const fs::path& directory) {
  std::error_code problem;
  for (const auto& each : fs::directory_iterator(directory, problem)) {
    const std::string name = each.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos &&
        fs::exists(each.path() / "meta.yaml", problem)) {
      return true;
    }
  }
  return false;
}

}  // namespace

fs::path path_of_uri(const std::string& uri) {
  const std::string scheme = scheme_of(uri);
  if (scheme.empty()) return uri;
  if (scheme != "file") return {};
  std::string_view path(uri);
  path.remove_prefix(scheme.size() + 1);
  if (path.starts_with("//")) {
    // Between the slashes is the host, which is this machine.
    path.remove_prefix(2);
    const std::size_t slash = path.find('/');
    path.remove_prefix(slash == std::string_view::npos ? path.size() : slash);
  }
  return unescaped(path);
}

std::string uri_of_path(const fs::path& path) {
  constexpr std::string_view kPlain = "/-._~";
  std::string uri = "file://";
  for (const char letter : fs::absolute(path).lexically_normal().string()) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0 || kPlain.find(letter) != std::string::npos) {
      uri += letter;
    } else {
      char escape[4];
      std::snprintf(escape, sizeof escape, "%%%02X", byte);
      uri += escape;
    }
  }
  return uri;
}

std::string absolute_artifact_location(const std::string& location) {
  return scheme_of(location).empty() ? uri_of_path(location) : location;
}

std::int64_t now_in_milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

fs::path mlflow_artifact_path(
    const std::string& artifact_uri,
    const std::string& path) {
  const fs::path directory = path_of_uri(artifact_uri);
  if (directory.empty()) {
    throw Error(format(
        "[trackers] MLflow's artifacts of this run go to {}, which only its "
        "Python package can write; set a local artifact location, or use a "
        "tracking server that serves artifacts",
        printable(artifact_uri)));
  }
  return path_below(directory, path);
}

std::unique_ptr<MlflowStore> open_mlflow_store(
    const std::string& uri,
    const Environment& environment,
    const std::shared_ptr<const TrackerPatience>& patience) {
  if (uri.empty()) {
    if (has_runs(kDirectory)) return open_mlflow_files(kDirectory);
    return open_mlflow_database(kDatabase, patience);
  }
  const std::string scheme = scheme_of(uri);
  if (scheme == "http" || scheme == "https")
    return open_mlflow_server(uri, environment, patience);
  constexpr std::string_view kSqlite = "sqlite:///";
  if (uri.starts_with(kSqlite))
    return open_mlflow_database(
        unescaped(uri.substr(kSqlite.size())), patience);
  const fs::path directory = path_of_uri(uri);
  if (!directory.empty()) return open_mlflow_files(directory);
  throw ConfigError(format(
      "[trackers] MLFLOW_TRACKING_URI is \"{}\", which is not supported; use a "
      "directory, file:, sqlite:///, http:// or https://, or start \"mlflow "
      "server\" in front of another store",
      printable(uri)));
}

namespace {

bool begins_character(char letter) {
  return (static_cast<unsigned char>(letter) & 0xc0U) != 0x80U;
}

bool is_key_letter(char letter) {
  constexpr std::string_view kMarks = "/_.-: ";
  const auto byte = static_cast<unsigned char>(letter);
  return byte >= 0x80 || std::isalnum(byte) != 0 ||
      kMarks.find(letter) != std::string_view::npos;
}

}  // namespace

std::string complaint_about_mlflow_key(std::string_view key) {
  if (key.empty() || key.size() > kMostMlflowKeyBytes) {
    return format(
        "names for MLflow must have 1 to {} bytes, but \"{}\" has {}; it is "
        "not logged",
        kMostMlflowKeyBytes,
        printable(key),
        key.size());
  }
  if (!is_utf8(key) || !std::ranges::all_of(key, is_key_letter)) {
    return format(
        "names for MLflow must consist of letters, digits, spaces and / _ . - "
        ":, unlike \"{}\", which is not logged",
        printable(key));
  }
  // Names become paths, which must differ for different names.
  const std::string path =
      std::filesystem::path(key).lexically_normal().string();
  if (path != key || key.front() == '/' || key.back() == '/' || key == "." ||
      key == ".." || key.starts_with("../")) {
    return format(
        "names for MLflow must be paths without \".\", \"..\" and double "
        "slashes, unlike \"{}\", which is not logged",
        printable(key));
  }
  return "";
}

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, begins_character));
}

std::string first_characters(std::string_view text, std::size_t most) {
  std::size_t num = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begins_character(text[i]) && num++ == most)
      return std::string(text.substr(0, i));
  }
  return std::string(text);
}

}  // namespace accelerate::detail
