#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Work that was done when it was made. Its future holds `tensors`.
ACCELERATE_API Work completed_work(std::vector<at::Tensor> tensors);

/// `work`, and then `finish`, once: in `wait()`, or on the thread that completes
/// the future, which holds `tensors`.
Work work_then(
    Work work,
    std::function<void()> finish,
    std::vector<at::Tensor> tensors);

}  // namespace accelerate::detail
