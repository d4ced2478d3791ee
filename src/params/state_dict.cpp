#include <accelerate/state_dict.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate {

const StateDict::Value& StateDict::at(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    throw CheckpointError(detail::concat(
        "[checkpoint] the state has no \"",
        key,
        "\"; it was saved by something else"));
  }
  return found->second;
}

void StateDict::throw_wrong_type(std::string_view key) {
  throw CheckpointError(detail::concat(
      "[checkpoint] \"",
      key,
      "\" of the state is of another type than expected; "
      "it was saved by something else"));
}

}  // namespace accelerate
