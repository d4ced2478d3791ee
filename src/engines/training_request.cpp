#include "engines/training_request.h"

#include "base/text/text.h"

namespace accelerate::detail {

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
