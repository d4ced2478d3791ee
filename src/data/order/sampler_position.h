#pragma once

#include <cstdint>

namespace accelerate::detail {

/// Throws DataError unless a sampler's pass of `size` positions, 0 before the
/// first begin_pass(), has this one.
void require_position(std::int64_t position, std::int64_t size);

}  // namespace accelerate::detail
