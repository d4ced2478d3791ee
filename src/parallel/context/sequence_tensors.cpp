#include "parallel/context/sequence_tensors.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/WrapDimUtils.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/autograd/region.h"

namespace accelerate::detail {

at::Tensor with_heads(const at::Tensor& tensor) {
  switch (tensor.dim()) {
    case 2:
      return tensor.unsqueeze(0).unsqueeze(0);
    case 3:
      return tensor.unsqueeze(1);
    case 4:
      return tensor;
    default:
      throw ConfigError(format(
          "[parallel] attention over a divided sequence takes tensors of 2, 3 "
          "or 4 dimensions, but got {}; flatten those before the heads",
          tensor.dim()));
  }
}

void check_local_length(
    std::int64_t length,
    const Group& group,
    const SequenceShards& shards) {
  if (group.size() != shards.num_ranks()) {
    throw ConfigError(format(
        "[parallel] a sequence was divided among {} ranks, but attention runs "
        "on a group of {}",
        shards.num_ranks(),
        group.size()));
  }
  if (length == shards.local_length()) return;
  throw ConfigError(format(
      "[parallel] attention got {} positions, but for a sequence of {} each of "
      "{} ranks has {}; cut the inputs (maybe_context_parallel)",
      length,
      shards.length(),
      shards.num_ranks(),
      shards.local_length()));
}

std::uint64_t dropout_seed(
    const SequenceAttentionOptions& options,
    const Group& group) {
  if (options.dropout_p == 0) return 0;
  if (options.dropout_seed) return *options.dropout_seed;
  const at::Tensor seed = at::randint(
      std::numeric_limits<std::int64_t>::max(), {1}, at::dtype(at::kLong));
  if (group.size() > 1) group.broadcast(seed, 0);
  return static_cast<std::uint64_t>(seed.item<std::int64_t>());
}

at::Tensor local_positions(
    const at::Tensor& tensor,
    std::int64_t dim,
    const SequenceShards& shards,
    int rank,
    const at::Scalar& fill) {
  const std::int64_t size = tensor.size(dim);
  if (size != shards.length() && size != shards.padded_length()) {
    throw ConfigError(format(
        "[parallel] a tensor has {} positions in dimension {}, but the "
        "sequence that is divided has {}",
        size,
        dim,
        shards.length()));
  }
  std::vector<at::Tensor> pieces;
  for (const PositionRange& range : shards.ranges(rank)) {
    const std::int64_t first = std::min(range.begin, size);
    const std::int64_t last = std::min(range.begin + range.length, size);
    pieces.push_back(tensor.narrow(dim, first, last - first));
    if (last - first == range.length) continue;
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    sizes[static_cast<std::size_t>(at::maybe_wrap_dim(dim, tensor.dim()))] =
        range.length - (last - first);
    pieces.push_back(at::full(sizes, fill, tensor.options()));
  }
  return pieces.size() == 1 ? pieces[0].contiguous() : at::cat(pieces, dim);
}

at::Tensor gather_positions(
    const at::Tensor& own,
    std::int64_t dim,
    const Group& group,
    const SequenceShards& shards) {
  check_local_length(own.size(dim), group, shards);
  const std::vector<std::int64_t> sizes(
      static_cast<std::size_t>(group.size()), shards.local_length());
  const at::Tensor all =
      gather_from_region(own, dim, group, GatheredGradient::partial, sizes);
  std::vector<std::int64_t> order = shards.restore();
  order.resize(static_cast<std::size_t>(shards.length()));
  return all.index_select(dim, at::tensor(order, at::kLong).to(own.device()));
}

}  // namespace accelerate::detail
