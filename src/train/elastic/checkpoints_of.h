#pragma once

#include <accelerate/accelerator.h>

#include "train/session/session.h"

namespace accelerate::detail {

/// Reaches the checkpoints of an Accelerator, which its users do not need.
struct OpenedAccelerator : Accelerator {
  static Checkpoints& checkpoints_of(const Accelerator& accelerator) {
    return *(accelerator.*(&OpenedAccelerator::session_))->services.checkpoints;
  }
};

}  // namespace accelerate::detail
