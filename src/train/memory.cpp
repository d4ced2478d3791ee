#include <accelerate/memory.h>

#include <malloc.h>

#include <array>
#include <new>
#include <stdexcept>
#include <string_view>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <accelerate/error.h>

#include "base/text.h"

namespace accelerate {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return true;
  // The types that LibTorch's allocators throw; a logic error may quote such a
  // message.
  if (dynamic_cast<const std::runtime_error*>(&error) == nullptr &&
      dynamic_cast<const c10::Error*>(&error) == nullptr) {
    return false;
  }
  static constexpr std::array<std::string_view, 5> kPhrases{
      " out of memory.",
      "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
      "DefaultCPUAllocator: can't allocate memory",
      "FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
      "MPS backend out of memory"};
  const std::string_view text = error.what();
  for (const std::string_view phrase : kPhrases) {
    if (text.find(phrase) != std::string_view::npos) return true;
  }
  return false;
}

void clear_device_cache() {
  const auto accelerator = at::accelerator::getAccelerator(/*checked=*/false);
  if (accelerator && at::accelerator::deviceCount() > 0)
    at::accelerator::emptyCache();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

BatchSizeSearch::BatchSizeSearch(BatchSizeSearchOptions options)
    : options_(std::move(options)), batch_size_(options_.starting_batch_size) {
  if (batch_size_ < 0) {
    throw ConfigError(detail::format(
        "[train] a search for a batch size was asked to start at {}; start at "
        "1 or more",
        batch_size_));
  }
}

void BatchSizeSearch::require_batch_size() const {
  if (batch_size_ > 0) return;
  throw Error(detail::format(
      "[train] no batch size works: all that were tried, from {} down, ran out "
      "of memory; use a smaller model, or shard it",
      options_.starting_batch_size));
}

bool BatchSizeSearch::attempt(const std::function<void()>& function) {
  bool ran_out = false;
  try {
    function();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    ran_out = true;
  }
  if (options_.group && options_.group->size() > 1) {
    const at::Tensor any = at::full({}, ran_out ? 1 : 0, at::kLong);
    options_.group->all_reduce(any, ReduceOp::max);
    ran_out = any.item<std::int64_t>() != 0;
  }
  if (!ran_out) return true;
  // Outside the handler, because the exception may hold memory to be freed.
  clear_device_cache();
  const std::int64_t next = options_.reduce_batch_size
      ? options_.reduce_batch_size(batch_size_)
      : batch_size_ * 9 / 10;
  if (next >= batch_size_) {
    throw ConfigError(detail::format(
        "[train] reduce_batch_size returned {} for {}; it must return less",
        next,
        batch_size_));
  }
  batch_size_ = next < 0 ? 0 : next;
  return false;
}

}  // namespace accelerate
