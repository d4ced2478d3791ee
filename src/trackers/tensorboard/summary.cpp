#include "trackers/tensorboard/summary.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <protozero/pbf_writer.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "trackers/media/utf8_text.h"

namespace accelerate::detail {

namespace {

using Field = protozero::pbf_tag_type;

// Fields of tensorflow.Summary and the messages in it.
constexpr Field kSummaryValue = 1;
constexpr Field kValueTag = 1, kValueSimple = 2, kValueImage = 4,
                kValueHistogram = 5, kValueTensor = 8, kValueMetadata = 9;
constexpr Field kMetadataPlugin = 1, kPluginName = 1, kPluginContent = 2;
constexpr Field kTensorType = 1, kTensorShape = 2, kTensorFloats = 5,
                kTensorDoubles = 6, kTensorStrings = 8;
constexpr Field kShapeDimension = 2, kDimensionSize = 1;
constexpr Field kImageHeight = 1, kImageWidth = 2, kImageColorSpace = 3,
                kImageFile = 4;
constexpr Field kHistogramMin = 1, kHistogramMax = 2, kHistogramNum = 3,
                kHistogramSum = 4, kHistogramSumSquares = 5,
                kHistogramLimits = 6, kHistogramCounts = 7;
// tensorflow.DataType
constexpr std::int32_t kFloat = 1, kDouble = 2, kString = 7;

template <class AddContent>
std::string summary_of(std::string_view tag, AddContent&& add_content) {
  std::string bytes;
  protozero::pbf_writer summary(bytes);
  protozero::pbf_writer value(summary, kSummaryValue);
  value.add_string(kValueTag, utf8_text(tag));
  std::forward<AddContent>(add_content)(value);
  value.commit();
  return bytes;
}

void add_plugin(
    protozero::pbf_writer& value,
    std::string_view name,
    std::string_view content) {
  protozero::pbf_writer metadata(value, kValueMetadata);
  protozero::pbf_writer plugin(metadata, kMetadataPlugin);
  plugin.add_string(kPluginName, name.data(), name.size());
  if (!content.empty()) {
    plugin.add_bytes(kPluginContent, content.data(), content.size());
  }
}

// A cell of a table: bars and line breaks would end it.
std::string table_cell(std::string_view text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\n') {
      result += "<br>";
    } else {
      if (letter == '|' || letter == '\\') result += '\\';
      result += letter;
    }
  }
  return result;
}

using Field = protozero::pbf_tag_type;

// Fields of tensorboard.hparams.HParamsPluginData and the messages in it.
constexpr Field kDataExperiment = 2, kDataStart = 3, kDataEnd = 4;
constexpr Field kExperimentInfos = 4, kInfoName = 1, kInfoType = 4;
constexpr Field kStartValues = 1, kStartTime = 5, kEntryKey = 1,
                kEntryValue = 2;
constexpr Field kEndStatus = 1;
// google.protobuf.Value
constexpr Field kNumberValue = 2, kStringValue = 3;
// tensorboard.hparams.DataType and Status
constexpr std::int32_t kStringType = 1, kNumberType = 3, kSuccess = 1;

std::string hparams_summary(
    std::string_view name,
    Field field,
    const std::string& message) {
  std::string content;
  // Written even if it is empty: the field's presence says what the data are.
  protozero::pbf_writer(content).add_message(field, message);
  return plugin_summary(format("_hparams_/{}", name), "hparams", content);
}

void require_hyperparameter(const NamedValue& each) {
  if (each.value.is_none() || each.value.text() || each.value.number()) return;
  throw ConfigError(format(
      "[trackers] TensorBoard: the hyperparameter \"{}\" is {}; value should "
      "be one of int, float, str, bool, or torch.Tensor",
      printable(each.name),
      printable(each.value.str())));
}

}  // namespace

std::string scalar_summary(std::string_view tag, double value) {
  return summary_of(tag, [&](protozero::pbf_writer& content) {
    content.add_float(kValueSimple, static_cast<float>(value));
  });
}

std::string
tensor_scalar_summary(std::string_view tag, double value, bool is_double) {
  return summary_of(tag, [&](protozero::pbf_writer& content) {
    {
      protozero::pbf_writer tensor(content, kValueTensor);
      tensor.add_enum(kTensorType, is_double ? kDouble : kFloat);
      if (is_double) {
        tensor.add_packed_double(kTensorDoubles, &value, &value + 1);
      } else {
        const auto number = static_cast<float>(value);
        tensor.add_packed_float(kTensorFloats, &number, &number + 1);
      }
    }
    add_plugin(content, "scalars", {});
  });
}

std::string text_summary(std::string_view tag, std::string_view text) {
  const std::string full_tag = std::string(tag) + "/text_summary";
  return summary_of(full_tag, [&](protozero::pbf_writer& content) {
    {
      protozero::pbf_writer tensor(content, kValueTensor);
      tensor.add_enum(kTensorType, kString);
      {
        protozero::pbf_writer shape(tensor, kTensorShape);
        protozero::pbf_writer dimension(shape, kShapeDimension);
        dimension.add_int64(kDimensionSize, 1);
      }
      tensor.add_bytes(kTensorStrings, text.data(), text.size());
    }
    add_plugin(content, "text", {});
  });
}

std::string image_summary(std::string_view tag, const Pixels& image) {
  const std::string file = png_of(image);
  return summary_of(tag, [&](protozero::pbf_writer& content) {
    protozero::pbf_writer fields(content, kValueImage);
    fields.add_int32(kImageHeight, static_cast<std::int32_t>(image.height));
    fields.add_int32(kImageWidth, static_cast<std::int32_t>(image.width));
    fields.add_int32(
        kImageColorSpace, static_cast<std::int32_t>(image.channels));
    fields.add_bytes(kImageFile, file);
  });
}

std::string histogram_summary(
    std::string_view tag,
    const TrackedHistogram& histogram) {
  // A limit is the upper edge of its bucket, so the lowest edge needs an empty
  // bucket.
  std::vector<double> counts{0.0};
  counts.insert(counts.end(), histogram.counts.begin(), histogram.counts.end());
  return summary_of(tag, [&](protozero::pbf_writer& content) {
    protozero::pbf_writer fields(content, kValueHistogram);
    fields.add_double(kHistogramMin, histogram.min);
    fields.add_double(kHistogramMax, histogram.max);
    fields.add_double(kHistogramNum, static_cast<double>(histogram.num));
    fields.add_double(kHistogramSum, histogram.sum);
    fields.add_double(kHistogramSumSquares, histogram.sum_squares);
    fields.add_packed_double(
        kHistogramLimits, histogram.edges.begin(), histogram.edges.end());
    fields.add_packed_double(kHistogramCounts, counts.begin(), counts.end());
  });
}

std::string plugin_summary(
    std::string_view tag,
    std::string_view plugin,
    std::string_view content) {
  return summary_of(tag, [&](protozero::pbf_writer& value) {
    add_plugin(value, plugin, content);
  });
}

std::string markdown_table(const TrackedTable& table) {
  std::string names = "|", rule = "|", rows;
  for (const std::string& column : table.columns) {
    names += " " + table_cell(column) + " |";
    rule += " --- |";
  }
  for (const std::vector<TrackedValue>& row : table.rows) {
    rows += "\n|";
    for (const TrackedValue& value : row) {
      rows += " " + table_cell(value.str()) + " |";
    }
  }
  return names + "\n" + rule + rows;
}

std::array<std::string, 3> hparams_summaries(
    const TrackedValues& values,
    double begin) {
  std::string infos, session, session_end;
  protozero::pbf_writer add_infos(infos), add_session(session);
  for (const NamedValue& each : values) {
    require_hyperparameter(each);
    if (each.value.is_none()) continue;
    const std::string* const text = each.value.text();
    {
      protozero::pbf_writer info(add_infos, kExperimentInfos);
      info.add_string(kInfoName, utf8_text(each.name));
      info.add_enum(kInfoType, text ? kStringType : kNumberType);
    }
    protozero::pbf_writer entry(add_session, kStartValues);
    entry.add_string(kEntryKey, utf8_text(each.name));
    protozero::pbf_writer value(entry, kEntryValue);
    if (text) {
      value.add_string(kStringValue, utf8_text(*text));
    } else {
      value.add_double(kNumberValue, each.value.number().value_or(0));
    }
  }
  add_session.add_double(kStartTime, begin);
  protozero::pbf_writer(session_end).add_enum(kEndStatus, kSuccess);
  return {
      hparams_summary("experiment", kDataExperiment, infos),
      hparams_summary("session_start_info", kDataStart, session),
      hparams_summary("session_end_info", kDataEnd, session_end)};
}

}  // namespace accelerate::detail
