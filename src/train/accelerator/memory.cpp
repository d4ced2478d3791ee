#include <accelerate/memory.h>

#include <malloc.h>

#include <array>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <accelerate/error.h>
#include <accelerate/model_device_map.h>

#include "base/text/text.h"
#include "comm/collectives/any_rank.h"
#include "comm/group/group_impl.h"

namespace accelerate {

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return true;
  // Only the types that LibTorch's allocators throw; a logic error may quote
  // such a message.
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

namespace {

// Options of a world of these ranks, with its own keys in their store.
// Collective.
WorldOptions options_of_new_world(const Group& group) {
  const detail::WorldCore& core = *group.impl()->world;
  std::string prefix;
  if (group.rank() == 0) {
    prefix = detail::format(
        "batch_size_search/{}", core.store.add("batch_size_search", 1));
  }
  WorldOptions options;
  options.rank = group.rank();
  options.size = group.size();
  options.store =
      core.store.with_prefix(group.broadcast_bytes(prefix, /*src=*/0));
  options.timeout = core.timeout;
  options.debug = core.debug;
  options.logger = core.logger;
  options.own_transport = core.transport;
  return options;
}

}  // namespace

BatchSizeSearchOptions search_from_plan(
    const MemoryPlan& plan,
    const PlannedSearch& search) {
  const Group* const group = search.group ? &*search.group : nullptr;
  std::int64_t num_bytes = 0;
  if (search.memory) {
    num_bytes = search.memory->bytes();
  } else {
    // Accelerators come first.
    const MaxMemory free = get_max_memory();
    if (!free.empty()) num_bytes = free.front().second.bytes();
    const bool is_shared =
        group != nullptr && !free.empty() && free.front().first.is_cpu();
    if (is_shared) num_bytes /= group->size();
  }
  std::int64_t batch_size = plan.starting_batch_size(
      static_cast<std::uint64_t>(num_bytes),
      search.split,
      search.precision,
      search.recomputes);
  if (group != nullptr && group->size() > 1) {
    const at::Tensor least = at::full({}, batch_size, at::kLong);
    group->all_reduce(least, ReduceOp::min);
    batch_size = least.item<std::int64_t>();
  }
  BatchSizeSearchOptions options;
  options.starting_batch_size = batch_size;
  options.group = search.group;
  return options;
}

BatchSizeSearch::BatchSizeSearch(BatchSizeSearchOptions options)
    : options_(std::move(options)), batch_size_(options_.starting_batch_size) {
  if (batch_size_ < 0) {
    throw ConfigError(detail::format(
        "[train] a search for a batch size must start at 1 or "
        "more, but starts at {}",
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

bool BatchSizeSearch::attempt(
    const std::function<void(const WorldOptions&)>& function) {
  const bool has_peers = options_.group && options_.group->size() > 1;
  bool ran_out = false;
  std::exception_ptr lost;
  try {
    function(
        has_peers ? options_of_new_world(*options_.group) : WorldOptions());
  } catch (const DistributedError&) {
    // A peer that ran out of memory closes its connections.
    if (!has_peers) throw;
    lost = std::current_exception();
  } catch (const std::exception& error) {
    if (!is_out_of_memory(error)) throw;
    ran_out = true;
  }
  if (has_peers)
    ran_out = detail::is_true_on_any_rank(*options_.group, ran_out);
  if (!ran_out && lost) std::rethrow_exception(lost);
  if (!ran_out) return true;
  // Outside the handler, because the exception may hold the memory to be freed.
  clear_device_cache();
  const std::int64_t next = options_.reduce_batch_size
      ? options_.reduce_batch_size(batch_size_)
      : batch_size_ * 9 / 10;
  if (next >= batch_size_) {
    throw ConfigError(detail::format(
        "[train] reduce_batch_size must return less than its argument, but "
        "returned {} for {}",
        next,
        batch_size_));
  }
  batch_size_ = next < 0 ? 0 : next;
  return false;
}

}  // namespace accelerate
