#pragma once

#include <memory>

#include <accelerate/accelerate.h>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// The unbound schedule that {"name", "args"} describes.
std::unique_ptr<optim::LRScheduler> make_schedule(const Json& schedule);

}  // namespace accelerate::oracle
