#include <accelerate/state_dict.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate {

const StateDict::Value& StateDict::at(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    throw CheckpointError(detail::format(
        "[checkpoint] the state has no \"{}\"; it was saved by something else",
        key));
  }
  return found->second;
}

void StateDict::throw_wrong_type(std::string_view key) {
  throw CheckpointError(detail::format(
      "[checkpoint] \"{}\" of the state is of another type than expected; it "
      "was saved by something else",
      key));
}

}  // namespace accelerate
