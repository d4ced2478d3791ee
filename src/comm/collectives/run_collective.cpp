#include "comm/collectives/run_collective.h"

#include <c10/core/ScalarType.h>

#include "base/text/text.h"

namespace accelerate::detail {

std::string text_of(const at::Tensor& tensor) {
  return format("{} {}", c10::toString(tensor.scalar_type()), tensor.sizes());
}

void require_rank(const GroupImpl& group, const char* operation, int rank) {
  if (rank >= 0 && rank < group.size) return;
  throw ConfigError(format(
      "[comm] {} was asked for rank {} of a group of {}; ranks count from 0 to "
      "{}",
      operation,
      rank,
      group.size,
      group.size - 1));
}

void require_tag(const char* operation, int tag) {
  if (tag >= 0 && tag < kFirstReservedTag) return;
  throw ConfigError(format(
      "[comm] {} was given the tag {}; tags count from 0 to {}",
      operation,
      tag,
      kFirstReservedTag - 1));
}

void require_parts(
    const GroupImpl& group,
    const char* operation,
    std::size_t count) {
  if (count == static_cast<std::size_t>(group.size)) return;
  throw ConfigError(format(
      "[comm] {} was given {} parts for {} ranks; give it one per rank",
      operation,
      count,
      group.size));
}

}  // namespace accelerate::detail
