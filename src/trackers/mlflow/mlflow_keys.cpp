#include "trackers/mlflow/mlflow_keys.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/text/text.h"
#include "trackers/mlflow/mlflow_store.h"

namespace accelerate::detail {

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
        "MLflow's names have 1 to {} bytes; \"{}\" has {}, and is not logged",
        kMostMlflowKeyBytes,
        printable(key),
        key.size());
  }
  if (!is_utf8(key) || !std::all_of(key.begin(), key.end(), is_key_letter)) {
    return format(
        "MLflow's names consist of letters, digits, spaces and / _ . - :, "
        "unlike \"{}\", which is not logged",
        printable(key));
  }
  // Names become paths, which must differ for different names.
  const std::string path =
      std::filesystem::path(key).lexically_normal().string();
  if (path != key || key.front() == '/' || key.back() == '/' || key == "." ||
      key == ".." || key.starts_with("../")) {
    return format(
        "MLflow's names are paths without \".\", \"..\" and double slashes, "
        "unlike \"{}\", which is not logged",
        printable(key));
  }
  return "";
}

std::size_t num_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), begins_character));
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
