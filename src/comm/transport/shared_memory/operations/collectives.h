#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <c10/core/ScalarType.h>

#include "comm/transport/shared_memory/memory/host_memory.h"
#include "comm/transport/shared_memory/memory/layout.h"
#include "comm/transport/shared_memory/operations/combine.h"
#include "comm/transport/shared_memory/operations/operation.h"

namespace accelerate::detail {

enum class CollectiveKind : std::uint8_t {
  barrier,
  broadcast,
  all_gather,
  gather,
  scatter,
  all_to_all,
  all_reduce,
  reduce,
  reduce_scatter,
};

/// A tensor as collectives see it: its elements, and what the ranks compare.
struct HostTensor {
  HostTensor(
      std::byte* data,
      at::ScalarType dtype,
      std::span<const std::int64_t> sizes,
      std::span<const std::int64_t> strides);

  /// The stamp of a collective that is called with this tensor.
  [[nodiscard]] CollectiveStamp stamp(CollectiveKind kind, int root = -1) const;

  HostMemory memory;
  at::ScalarType dtype;
  std::uint8_t num_dims = 0;
  std::array<std::int64_t, CollectiveStamp::kMostDims> sizes{};
};

/// Collectives on host memory, which must stay valid until they are finished.
/// All ranks must begin the same ones in the same order, with tensors of equal
/// dtypes and shapes; if they do not, the first ranks to notice throw
/// DistributedError with both calls.
///
/// Data passes through the ranks' slots in steps. Reductions add in rank order,
/// so their results depend neither on timing nor on the size of steps.
std::unique_ptr<Operation> make_barrier(
    const CollectiveStamp& stamp = {
        .kind = static_cast<std::uint8_t>(CollectiveKind::barrier)});
std::unique_ptr<Operation> make_broadcast(const HostTensor& data, int root);
/// `output` receives the inputs of all ranks, one after another.
std::unique_ptr<Operation> make_all_gather(
    const HostMemory& output,
    const HostTensor& input);
/// `outputs`: one per rank on `root`, none elsewhere.
std::unique_ptr<Operation>
make_gather(std::vector<HostMemory> outputs, const HostTensor& input, int root);
/// `inputs`: one per rank on `root`, none elsewhere.
std::unique_ptr<Operation> make_scatter(
    const HostTensor& output,
    std::vector<HostMemory> inputs,
    int root);
/// Both tensors have one dimension, which holds the ranks' parts one after
/// another; the sizes of parts are in bytes. The ranks compare them.
std::unique_ptr<Operation> make_all_to_all(
    const HostTensor& output,
    const HostTensor& input,
    std::vector<std::size_t> output_bytes,
    std::vector<std::size_t> input_bytes);
/// Reduces in place. Every rank reduces all of a short tensor; of a long one,
/// each rank reduces a part, without copies if the data is in one of the
/// fabric's blocks.
std::unique_ptr<Operation>
make_all_reduce(const HostTensor& data, const Combination& how, int num_ranks);
/// Reduces in place on rank `root`; elsewhere `data` is only read.
std::unique_ptr<Operation>
make_reduce(const HostTensor& data, const Combination& how, int root);
/// `input` has the size of `output` per rank; `output` receives the reduction
/// of this rank's part.
std::unique_ptr<Operation> make_reduce_scatter(
    const HostMemory& output,
    const HostTensor& input,
    const Combination& how);

}  // namespace accelerate::detail
