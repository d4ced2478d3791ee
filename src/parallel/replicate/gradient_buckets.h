#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/parallel.h>
#include <accelerate/world.h>

#include "parallel/replicate/trainable_rows.h"

namespace accelerate::detail {

/// Memory in which gradients travel: flat buckets, in the order in which they
/// are sent, each of one dtype and device.
class GradientBuckets {
 public:
  struct Bucket {
    std::vector<std::size_t> rows;
    at::Tensor buffer;
  };

  /// Expects gradients from the last row to the first. `rows` must outlive the
  /// object. Collective: the memory is shared with the ranks of `group` where
  /// its transport can reduce it without copies.
  GradientBuckets(
      const TrainableRows& rows,
      const Group& group,
      const ReplicateOptions& options);

  /// Expects gradients in this order of the rows instead. Collective; the
  /// order must be the same on all ranks.
  void arrange(const std::vector<std::int64_t>& order);

  [[nodiscard]] const std::vector<Bucket>& all() const { return buckets_; }
  [[nodiscard]] std::size_t bucket_of(std::size_t row) const {
    return places_[row].bucket;
  }
  /// The row's part of its bucket, with the sizes of the parameter, and its
  /// strides unless elements overlap or have gaps between them.
  [[nodiscard]] const at::Tensor& view_of(std::size_t row) const {
    return places_[row].view;
  }
  /// Bucket `index` as hooks see it.
  [[nodiscard]] c10d::GradBucket message(std::size_t index) const;
  /// Bucket `index` as hooks see it, with zeros in memory of its own.
  [[nodiscard]] c10d::GradBucket zeros(std::size_t index) const;

 private:
  struct Place {
    std::size_t bucket = 0;
    at::Tensor view;
  };

  void allocate();
  void share();
  void make_views();
  [[nodiscard]] c10d::GradBucket message(
      std::size_t index,
      const at::Tensor& buffer) const;

  const TrainableRows& rows_;
  Group group_;
  std::vector<std::size_t> limits_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;  // by row
};

}  // namespace accelerate::detail
