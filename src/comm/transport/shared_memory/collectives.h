#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "comm/transport/shared_memory/combine.h"
#include "comm/transport/shared_memory/operation.h"

namespace accelerate::detail {

enum class CollectiveKind : std::uint8_t {
  barrier,
  broadcast,
  all_gather,
  all_reduce,
  reduce,
  reduce_scatter,
};

/// Collectives on host memory, which must stay valid until they are finished.
/// All ranks must begin the same ones in the same order; if they do not, the
/// first ranks to notice throw DistributedError with both calls.
///
/// Data pass through the ranks' slots in steps. Reductions add in the order of
/// the ranks, so their results depend neither on timing nor on the size of
/// steps.
std::unique_ptr<Operation> make_barrier();
std::unique_ptr<Operation>
make_broadcast(std::byte* data, std::size_t bytes, int root);
/// `output` receives the inputs of all ranks, one after the other.
std::unique_ptr<Operation> make_all_gather(
    std::byte* output,
    const std::byte* input,
    std::size_t input_bytes);
/// In place. Short ones are reduced by each rank as a whole; of long ones, each
/// rank reduces a part.
std::unique_ptr<Operation> make_all_reduce(
    std::byte* data,
    std::size_t bytes,
    const Combination& how,
    int num_ranks);
/// In place on rank `root`; elsewhere `data` is only read.
std::unique_ptr<Operation> make_reduce(
    std::byte* data,
    std::size_t bytes,
    const Combination& how,
    int root);
/// `input` has `output_bytes` for each rank; `output` receives the reduction of
/// this rank's.
std::unique_ptr<Operation> make_reduce_scatter(
    std::byte* output,
    const std::byte* input,
    std::size_t output_bytes,
    const Combination& how);

}  // namespace accelerate::detail
