#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "comm/transport/transport.h"

namespace accelerate::detail {

/// Returns work that is already complete. Its future holds `tensors`.
Work completed_work(std::vector<at::Tensor> tensors);

/// Returns `work` followed by `finish`, which runs once: in `wait()`, or on the
/// thread that completes the future, which holds `tensors`.
Work work_then(
    Work work,
    std::function<void()> finish,
    std::vector<at::Tensor> tensors);

/// Returns work that ends with the last of `works`, without a future; null if
/// there are none. With a `failure`, the work is never complete, and wait()
/// throws it.
Work all_of(std::vector<Work> works, std::exception_ptr failure = nullptr);

}  // namespace accelerate::detail
