#include "trackers/tensorboard/hparams.h"

#include <cstdint>
#include <string_view>

#include <protozero/pbf_writer.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "trackers/media/utf8_text.h"
#include "trackers/tensorboard/summary.h"

namespace accelerate::detail {

namespace {

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
