#include "engines/training_request.h"

#include "base/text/text.h"

namespace accelerate::detail {

std::string_view possessive(Engine engine) {
  switch (engine) {
    case Engine::fully_sharded:
      return "FSDP's";
    case Engine::deepspeed:
      return "DeepSpeed's";
    case Engine::megatron_lm:
      return "Megatron-LM's";
    case Engine::none:
      break;
  }
  return "no engine's";
}

std::vector<std::string> names_of(const std::vector<IgnoredSetting>& ignored) {
  std::vector<std::string> names;
  for (const IgnoredSetting& setting : ignored) {
    names.push_back(
        setting.instead.empty()
            ? setting.name
            : format("{} ({})", setting.name, setting.instead));
  }
  return names;
}

}  // namespace accelerate::detail
