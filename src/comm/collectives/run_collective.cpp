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
      "[comm] {} got rank {} of a group of {}, whose ranks count from 0 to {}",
      operation,
      rank,
      group.size,
      group.size - 1));
}

void require_tag(const char* operation, int tag) {
  if (tag >= 0 && tag < kFirstReservedTag) return;
  throw ConfigError(format(
      "[comm] {} got the tag {}, but tags count from 0 to {}",
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
      "[comm] {} must get one part per rank, but got {} parts for {} ranks",
      operation,
      count,
      group.size));
}

}  // namespace accelerate::detail
