#pragma once

#include <memory>

#include "comm/transport/transport.h"

namespace accelerate::testing {

/// Connects ranks that are threads of this process through shared memory. It
/// reduces few dtypes, on the CPU only, adding in rank order; its messages have
/// no tags, and its collectives are complete when they return. All ranks must
/// be given the same object.
std::shared_ptr<detail::Transport> make_thread_transport();

}  // namespace accelerate::testing
