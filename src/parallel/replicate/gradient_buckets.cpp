#include "parallel/replicate/gradient_buckets.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <ATen/Functions.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "comm/group/group_impl.h"

namespace accelerate::detail {

GradientBuckets::GradientBuckets(
    const TrainableRows& rows,
    const Group& group,
    const ReplicateOptions& options)
    : rows_(rows),
      group_(group),
      limits_{
          static_cast<std::size_t>(options.first_bucket_bytes),
          static_cast<std::size_t>(options.bucket_bytes)},
      places_(rows.tensors.size()) {
  auto [members, sizes] =
      c10d::compute_bucket_assignment_by_size(rows.tensors, limits_);
  std::ranges::reverse(members);
  for (std::vector<std::size_t>& each : members)
    buckets_.push_back({std::move(each), {}});
  allocate();
}

void GradientBuckets::arrange(const std::vector<std::int64_t>& order) {
  std::vector<at::Tensor> tensors;
  for (const std::int64_t row : order)
    tensors.push_back(rows_.tensors[static_cast<std::size_t>(row)]);
  auto [members, sizes] =
      c10d::compute_bucket_assignment_by_size(tensors, limits_, {}, order);
  buckets_.clear();
  for (std::vector<std::size_t>& each : members)
    buckets_.push_back({std::move(each), {}});
  allocate();
}

void GradientBuckets::allocate() {
  for (Bucket& bucket : buckets_) {
    std::int64_t numel = 0;
    for (const std::size_t row : bucket.rows)
      numel += rows_.tensors[row].numel();
    bucket.buffer = at::empty(
        {numel}, rows_.tensors[bucket.rows[0]].options().requires_grad(false));
  }
  share();
  make_views();
}

void GradientBuckets::share() {
  // Below this size, copies cost less than a segment.
  constexpr std::int64_t kLeastBytes = std::int64_t{256} << 10U;
  constexpr std::int64_t kAlignment = 64;
  const auto room_for = [](const Bucket& bucket) {
    const auto bytes = static_cast<std::int64_t>(bucket.buffer.nbytes());
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  std::int64_t total = 0;
  for (const Bucket& bucket : buckets_) {
    if (!bucket.buffer.is_cpu()) return;
    total += room_for(bucket);
  }
  if (total < kLeastBytes) return;
  const at::Tensor memory = group_.impl()->connection->reducible_memory(total);
  if (!memory.defined()) return;
  std::int64_t begin = 0;
  for (Bucket& bucket : buckets_) {
    const auto bytes = static_cast<std::int64_t>(bucket.buffer.nbytes());
    const std::int64_t room = room_for(bucket);
    bucket.buffer =
        memory.narrow(0, begin, bytes).view(bucket.buffer.scalar_type());
    begin += room;
  }
}

void GradientBuckets::make_views() {
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    const Bucket& bucket = buckets_[index];
    std::int64_t begin = 0;
    for (const std::size_t row : bucket.rows) {
      const at::Tensor& parameter = rows_.tensors[row];
      const at::Tensor part = bucket.buffer.narrow(0, begin, parameter.numel());
      begin += parameter.numel();
      places_[row] = {
          index,
          parameter.is_non_overlapping_and_dense()
              ? part.as_strided(
                    parameter.sizes(),
                    parameter.strides(),
                    part.storage_offset())
              : part.view(parameter.sizes())};
    }
  }
}

c10d::GradBucket GradientBuckets::message(std::size_t index) const {
  return message(index, buckets_[index].buffer);
}

c10d::GradBucket GradientBuckets::zeros(std::size_t index) const {
  return message(index, at::zeros_like(buckets_[index].buffer));
}

c10d::GradBucket GradientBuckets::message(
    std::size_t index,
    const at::Tensor& buffer) const {
  std::vector<at::Tensor> parameters;
  std::vector<std::size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  std::size_t begin = 0;
  for (const std::size_t row : buckets_[index].rows) {
    const at::Tensor& parameter = rows_.tensors[row];
    parameters.push_back(parameter);
    offsets.push_back(begin);
    lengths.push_back(static_cast<std::size_t>(parameter.numel()));
    sizes.push_back(parameter.sizes());
    begin += lengths.back();
  }
  return c10d::GradBucket(
      index,
      buckets_.size(),
      buffer,
      std::move(offsets),
      std::move(lengths),
      std::move(sizes),
      std::move(parameters),
      std::nullopt);
}

}  // namespace accelerate::detail
