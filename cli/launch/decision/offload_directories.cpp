#include "cli/launch/decision/offload_directories.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "engines/disk_directories.h"
#include "engines/request/read_request.h"

namespace accelerate::cli {

detail::Settings with_engine(
    const LaunchDecision& decision,
    const detail::Settings& settings) {
  detail::Settings decided = settings;
  const auto choose = [&](const char* key) {
    if (!decided.boolean(key))
      decided.overrule(key, true, decision.engine_where);
  };
  switch (decision.paradigm) {
    case Paradigm::fsdp:
      choose("use_fsdp");
      break;
    case Paradigm::deepspeed:
      choose("use_deepspeed");
      break;
    case Paradigm::megatron:
      choose("use_megatron_lm");
      break;
    case Paradigm::simple:
    case Paradigm::multi_device:
    case Paradigm::tpu:
      break;
  }
  return decided;
}

void require_offload_directories(
    const LaunchDecision& decision,
    const detail::Settings& settings,
    const detail::Environment& environment) {
  constexpr std::array<std::string_view, 4> kMayUseDisk{
      "fsdp_offload_directory",
      "offload_optimizer_device",
      "offload_param_device",
      "deepspeed_config_file"};
  if (std::ranges::none_of(kMayUseDisk, [&](std::string_view key) {
        return settings.is_given(key);
      })) {
    return;
  }
  const std::string precision = settings.text("mixed_precision").value_or("no");
  detail::RequestSources sources;
  sources.mixed_precision = precision;
  sources.precision_is_open = precision == "no";
  sources.settings = with_engine(decision, settings);
  sources.environment = environment;
  const detail::TrainingRequest request =
      detail::read_training_request(sources);
  if (!request.sharding || !request.sharding->disk) return;
  const std::vector<std::string> complaints =
      detail::directory_complaints(*request.sharding->disk);
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
}

}  // namespace accelerate::cli
