#pragma once

#include <cstdint>

#include <accelerate/parallel_options.h>

namespace accelerate::detail {

/// Identifies random numbers that only rank `rank` of an axis' ranks has.
std::uint64_t random_stream_of(Axis axis, int rank);

/// From here to leave_random_region() with the same owner, operators with
/// random numbers on this thread draw from generators of the region: those of
/// different streams are independent of each other. For what a rank computes of
/// slices that the other ranks have the rest of, as dropout between a
/// column-wise and a row-wise layer. Outside, generators stay the same on all
/// ranks.
///
/// Regions have no state that a checkpoint would have to hold: the first random
/// operator in one draws the region's seed from the default generator of the
/// CPU, one number on every rank, from which the numbers of the region follow;
/// a region without random operators draws nothing. Regions may be nested; an
/// inner one takes its seed from the outer one. Forwards that are recomputed
/// get the numbers that they had the first time, regions or not. Without effect
/// on operators that are given a generator.
///
/// Does nothing if a region of this owner is open on the thread. Costs a flag
/// of the thread; random operators in a region some microseconds each.
void enter_random_region(const void* owner, std::uint64_t stream);

/// Ends the region, and those that were opened in it; nothing if there is none.
void leave_random_region(const void* owner);

}  // namespace accelerate::detail
