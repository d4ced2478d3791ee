#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <accelerate/byte_size.h>
#include <accelerate/export.h>
#include <accelerate/memory_plan.h>
#include <accelerate/world.h>

namespace accelerate {

/// Whether `error` means that memory ran out: std::bad_alloc, LibTorch's
/// OutOfMemoryError, or a runtime error with the message of LibTorch's CPU,
/// CUDA, XPU or MPS allocator, or of cuDNN.
[[nodiscard]] ACCELERATE_API bool is_out_of_memory(const std::exception& error);
/// Accelerate's name for is_out_of_memory().
[[nodiscard]] inline bool should_reduce_batch_size(
    const std::exception& error) {
  return is_out_of_memory(error);
}

/// Returns cached, unused memory of the accelerator to the system; on the CPU,
/// that of the C library's heap.
ACCELERATE_API void clear_device_cache();

/// Empties tensors, module holders, pointers and containers, and calls
/// `clear_device_cache()`.
template <class... Ts>
void release_memory(Ts&... objects) {
  const auto empty = []<class T>(T& object) {
    // For module holders: a default-constructed one would be a new module.
    if constexpr (std::is_constructible_v<T, std::nullptr_t>) {
      object = T(nullptr);
    } else {
      object = T{};
    }
  };
  (empty(objects), ...);
  clear_device_cache();
}

struct BatchSizeSearchOptions {
  /// The first batch size to try. Larger ones are never tried;
  /// search_from_plan() finds a good one.
  std::int64_t starting_batch_size = 128;
  /// The next batch size to try after one that was too large. Unset: nine
  /// tenths, rounded down; `halve` is the other common choice.
  std::function<std::int64_t(std::int64_t batch_size)> reduce_batch_size =
      nullptr;
  /// Ranks that must train with the same batch size: all try again if one ran
  /// out of memory. The function must end on every rank: either it does not
  /// communicate where another rank may have failed, or it communicates through
  /// its own world, made from the WorldOptions that it is passed. It must not
  /// use this group.
  std::optional<Group> group = std::nullopt;
};

/// Half, rounded down.
[[nodiscard]] constexpr std::int64_t halve(std::int64_t batch_size) {
  return batch_size / 2;
}

/// Arguments of search_from_plan().
struct PlannedSearch {
  /// How the ranks divide the model's state.
  MemorySplit split = MemorySplit::replicated;
  /// The dtype in which the forward computes.
  FloatType precision = FloatType::fp32;
  /// Whether activations are recomputed in backward.
  bool recomputes = false;
  /// Memory of one rank. Unset: what is free now on the first accelerator or,
  /// without one, in RAM, which the ranks of the group share.
  std::optional<ByteSize> memory = std::nullopt;
  /// See BatchSizeSearchOptions; all ranks begin with the smallest size that
  /// any of them finds.
  std::optional<Group> group = std::nullopt;
};

/// Returns options of a search that begins at the largest micro-batch that fits
/// according to a plan, instead of far above or below it. Collective if there
/// is a group. Throws ConfigError for a split that the plan does not have.
[[nodiscard]] ACCELERATE_API BatchSizeSearchOptions
search_from_plan(const MemoryPlan& plan, const PlannedSearch& search = {});

/// Finds the largest batch size, in a decreasing sequence, with which a
/// function does not run out of memory. The size found is kept: a later call
/// begins with it. Not thread-safe.
class ACCELERATE_API BatchSizeSearch {
 public:
  explicit BatchSizeSearch(BatchSizeSearchOptions options = {});

  /// Calls `function(batch_size)` until it does not run out of memory, and
  /// returns its result. Everything it builds must be local to it, or the
  /// memory is not free for the next try. Other exceptions pass through. Throws
  /// Error if no batch size is left.
  ///
  /// `function(batch_size, world_options)` gets the options of a world of the
  /// group's ranks that no other try uses. If it builds its Accelerator with
  /// them, it can communicate anywhere: when a rank runs out of memory and
  /// leaves the function, its connections close, the others get a
  /// DistributedError at once, and all try again with a smaller size.
  template <class Function>
  auto operator()(Function&& function) {
    const auto call = [&](const WorldOptions& world) {
      if constexpr (std::is_invocable_v<
                        Function&,
                        std::int64_t,
                        const WorldOptions&>) {
        return function(batch_size_, world);
      } else {
        return function(batch_size_);
      }
    };
    using Result = decltype(call(WorldOptions()));
    while (true) {
      require_batch_size();
      if constexpr (std::is_void_v<Result>) {
        if (attempt(call)) return;
      } else {
        std::optional<Result> result;
        if (attempt([&](const WorldOptions& world) {
              result.emplace(call(world));
            }))
          return std::move(*result);
      }
    }
  }

  /// The next size to be tried, or the one that worked; 0 if none is left.
  [[nodiscard]] std::int64_t batch_size() const { return batch_size_; }

 private:
  void require_batch_size() const;
  // Returns whether the function worked on every rank; if not, chooses the next
  // size.
  bool attempt(const std::function<void(const WorldOptions&)>& function);

  BatchSizeSearchOptions options_;
  std::int64_t batch_size_;
};

/// Searches once: `find_executable_batch_size([&](std::int64_t n) { ... })`.
template <class Function>
auto find_executable_batch_size(
    Function&& function,
    BatchSizeSearchOptions options = {}) {
  return BatchSizeSearch(std::move(options))(std::forward<Function>(function));
}

}  // namespace accelerate
