#include "trackers/wandb/wandb_media.h"

#include <string_view>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "trackers/files/run_files.h"
#include "trackers/media/pixels.h"
#include "trackers/media/sha256.h"
#include "trackers/media/utf8_text.h"
#include "trackers/wandb/wandb_values.h"

namespace accelerate::detail {

namespace {

using nlohmann::ordered_json;

struct MediaFile {
  std::string path;  // below the run's files
  std::string sha256;
};

// The name as a relative path that stays below its directory.
std::string media_name(const std::string& name) {
  std::vector<std::string> parts;
  for (const std::string& part : split(utf8_text(name), '/')) {
    if (part.empty() || part == "." || part == "..") {
      parts.push_back("_");
    } else {
      parts.push_back(part);
    }
  }
  return join(parts, "/");
}

MediaFile write_media_file(
    const std::filesystem::path& directory,
    std::string_view kind,
    const std::string& name,
    std::int64_t step,
    std::string_view extension,
    std::string_view content) {
  MediaFile file;
  file.sha256 = sha256_digits(content);
  file.path = format(
      "media/{}/{}_{}_{}.{}",
      kind,
      media_name(name),
      step,
      file.sha256.substr(0, 20),
      extension);
  write_run_file(directory / file.path, content);
  return file;
}

ordered_json file_value(
    std::string_view type,
    const MediaFile& file,
    std::size_t num_bytes) {
  return {
      {"_type", type},
      {"sha256", file.sha256},
      {"size", num_bytes},
      {"path", file.path}};
}

}  // namespace

WandbMedia write_wandb_images(
    const std::filesystem::path& directory,
    const std::string& name,
    std::int64_t step,
    const TrackedImages& images,
    const std::vector<std::string>& captions) {
  const std::vector<Pixels> separate = separate_images(images);
  if (!captions.empty() && captions.size() != separate.size()) {
    throw Error(format(
        "[trackers] wandb: there must be one caption per image, but there are "
        "{} for {} images of \"{}\"",
        captions.size(),
        separate.size(),
        printable(name)));
  }
  WandbMedia media;
  for (const Pixels& image : separate) {
    media.files.push_back(
        write_media_file(directory, "images", name, step, "png", png_of(image))
            .path);
  }
  media.value = {
      {"_type", "images/separated"},
      {"width", separate.front().width},
      {"height", separate.front().height},
      {"format", "png"},
      {"count", separate.size()},
      {"filenames", media.files}};
  if (!captions.empty()) media.value["captions"] = captions;
  return media;
}

WandbMedia write_wandb_table(
    const std::filesystem::path& directory,
    const std::string& name,
    std::int64_t step,
    const TrackedTable& table) {
  ordered_json rows = ordered_json::array();
  for (const std::vector<TrackedValue>& row : table.rows)
    rows.push_back(wandb_value(TrackedValue::List(row)));
  const std::string content =
      wandb_json({{"columns", table.columns}, {"data", std::move(rows)}});
  const MediaFile file =
      write_media_file(directory, "table", name, step, "table.json", content);
  WandbMedia media{file_value("table-file", file, content.size()), {file.path}};
  media.value["ncols"] = table.columns.size();
  media.value["nrows"] = table.rows.size();
  media.value["log_mode"] = "IMMUTABLE";
  return media;
}

WandbMedia write_wandb_html(
    const std::filesystem::path& directory,
    const std::string& name,
    std::int64_t step,
    const std::string& html) {
  const MediaFile file =
      write_media_file(directory, "html", name, step, "html", html);
  return {file_value("html-file", file, html.size()), {file.path}};
}

ordered_json wandb_histogram(const TrackedHistogram& histogram) {
  return {
      {"_type", "histogram"},
      {"values", histogram.counts},
      {"bins", histogram.edges}};
}

}  // namespace accelerate::detail
