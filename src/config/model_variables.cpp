#include "config/model_variables.h"

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

bool init_includes_buffers(const Environment& environment) {
  const auto text = environment.get("ACCELERATE_INIT_INCLUDE_BUFFERS");
  if (!text) return false;
  const auto value = parse_bool(*text);
  if (!value) {
    throw ConfigError(format(
        "[config] ACCELERATE_INIT_INCLUDE_BUFFERS must be true or false, but "
        "is \"{}\"",
        *text));
  }
  return *value;
}

}  // namespace accelerate::detail
