#include <accelerate/error.h>

namespace accelerate {

// Out of line: one type_info per class, in this library, so that catching
// across shared libraries works.
Error::~Error() = default;
ConfigError::~ConfigError() = default;
DistributedError::~DistributedError() = default;
CheckpointError::~CheckpointError() = default;
DataError::~DataError() = default;
InternalError::~InternalError() = default;

}  // namespace accelerate
