#include <accelerate/error.h>

#include <string>

#include <accelerate/detail/handles.h>

namespace accelerate {

// Out of line: one type_info per class, in this library, so that catching
// across shared libraries works.
Error::~Error() = default;
ConfigError::~ConfigError() = default;
DistributedError::~DistributedError() = default;
CheckpointError::~CheckpointError() = default;
DataError::~DataError() = default;
InternalError::~InternalError() = default;

void detail::throw_moved_from(std::string_view class_name) {
  throw ConfigError(
      "[base] a " + std::string(class_name) +
      " was used after it was moved from; use the one that it was moved to");
}

}  // namespace accelerate
