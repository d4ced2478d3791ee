#include "big_model/tiers/units/buffer_pool.h"

#include <cstddef>
#include <exception>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

#include "big_model/tiers/units/weight_units.h"
#include "checkpoint/tensors/tensor_bytes.h"

namespace accelerate::detail {

namespace {

// Maximum size of a recycled buffer, as a multiple of the requested size.
constexpr std::int64_t kMostSpare = 2;
// Maximum number of buffers being copied from; the next request waits.
constexpr std::size_t kMostInUse = 2;

bool is_in_use(const std::shared_ptr<c10::Event>& last_use) {
  return last_use != nullptr && !last_use->query();
}

}  // namespace

at::Tensor BufferPool::take(std::uint64_t num_bytes) {
  const auto wanted = static_cast<std::int64_t>(num_bytes);
  const auto fits = [&](const Buffer& buffer) {
    const std::int64_t size = buffer.memory.numel();
    return size >= wanted && size <= wanted * kMostSpare;
  };
  // A value that is still held may live in the buffer.
  std::erase_if(buffers_, [](const Buffer& each) {
    return !is_in_use(each.last_use) && each.memory.storage().use_count() > 1;
  });
  auto best = buffers_.end();
  std::size_t num_in_use = 0;
  for (auto each = buffers_.begin(); each != buffers_.end(); ++each) {
    if (is_in_use(each->last_use)) {
      ++num_in_use;
    } else if (
        fits(*each) &&
        (best == buffers_.end() ||
         each->memory.numel() < best->memory.numel())) {
      best = each;
    }
  }
  if (best == buffers_.end() && num_in_use >= kMostInUse) {
    // The buffer that was returned first becomes free first.
    for (auto each = buffers_.begin(); each != buffers_.end(); ++each) {
      if (!fits(*each)) continue;
      each->last_use->synchronize();
      if (each->memory.storage().use_count() > 1) continue;
      best = each;
      break;
    }
  }
  if (best != buffers_.end()) {
    at::Tensor memory = std::move(best->memory);
    buffers_.erase(best);
    return memory;
  }
  // Buffers that do not fit now are unlikely to fit later.
  std::erase_if(
      buffers_, [](const Buffer& each) { return !is_in_use(each.last_use); });
  return make(wanted);
}

at::Tensor BufferPool::make(std::int64_t num_bytes) const {
  const at::NoGradGuard no_grad;
  const std::int64_t size =
      num_bytes + static_cast<std::int64_t>(kWeightAlignment);
  at::Tensor made;
  if (is_pinned_) {
    try {
      made =
          at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(true));
    } catch (const std::exception&) {
      // Devices can copy from pageable memory as well.
    }
  }
  if (!made.defined()) {
    made = at::empty({size}, at::kByte);
    prefer_huge_pages(made);
  }
  // An ordinary view would also hold `made`, so the storage would look in use.
  const at::AutoDispatchBelowADInplaceOrView no_view;
  const auto address = reinterpret_cast<std::uintptr_t>(made.const_data_ptr());
  const auto skipped = static_cast<std::int64_t>(
      (kWeightAlignment - address % kWeightAlignment) % kWeightAlignment);
  return made.narrow(0, skipped, num_bytes);
}

void BufferPool::give_back(
    at::Tensor buffer,
    std::shared_ptr<c10::Event> last_use) {
  if (!buffer.defined()) return;
  buffers_.push_back({std::move(buffer), std::move(last_use)});
}

void BufferPool::trim(std::uint64_t num_bytes) {
  std::uint64_t sum = 0;
  for (const Buffer& each : buffers_) sum += num_bytes_of(each.memory);
  for (auto each = buffers_.begin();
       sum > num_bytes && each != buffers_.end();) {
    if (is_in_use(each->last_use)) {
      ++each;
      continue;
    }
    sum -= num_bytes_of(each->memory);
    each = buffers_.erase(each);
  }
}

}  // namespace accelerate::detail
