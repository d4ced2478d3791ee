#pragma once

#include <cstdint>

#include <accelerate/parallel_options.h>

namespace accelerate::detail {

/// Identifies the random numbers that only rank `rank` along the axis draws.
std::uint64_t random_stream_of(Axis axis, int rank);

/// From here to leave_random_region() with the same owner, random operators on
/// this thread draw from the region's generators; different streams are
/// independent. Meant for computations on this rank's slice, such as dropout
/// between a column-wise and a row-wise layer. Outside, generators stay the
/// same on all ranks.
///
/// Regions have no state to checkpoint: the first random operator in a region
/// draws the region's seed from the CPU's default generator, one number on
/// every rank, and that seed determines the region's numbers; a region without
/// random operators draws nothing. Regions can be nested; an inner one takes
/// its seed from the outer one. Recomputed forwards get the numbers they had
/// the first time, inside a region or not. Has no effect on operators that are
/// given a generator.
///
/// Does nothing if a region of this owner is open on the thread. Costs a
/// thread-local flag, and some microseconds per random operator in a region.
void enter_random_region(const void* owner, std::uint64_t stream);

/// Whether a region of this owner is open on the thread.
bool is_in_random_region(const void* owner);

/// Ends the region and those opened inside it; a no-op if there is none.
void leave_random_region(const void* owner);

/// While alive, keeps the region of this owner open or closed, as requested.
/// Afterwards the previous state is restored, but a region that was closed
/// meanwhile begins anew.
class RandomNumbersOf {
 public:
  RandomNumbersOf(const void* owner, std::uint64_t stream, bool is_open);
  ~RandomNumbersOf();
  RandomNumbersOf(const RandomNumbersOf&) = delete;
  RandomNumbersOf& operator=(const RandomNumbersOf&) = delete;

 private:
  const void* owner_;
  std::uint64_t stream_;
  bool was_open_;
};

}  // namespace accelerate::detail
