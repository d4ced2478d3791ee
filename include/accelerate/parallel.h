#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <span>

#include <accelerate/export.h>
#include <accelerate/parallel_options.h>
#include <accelerate/world.h>

namespace accelerate {

namespace detail {
struct MeshImpl;
}  // namespace detail

/// The ranks as a grid with one dimension an axis. A cheap handle.
class ACCELERATE_API Mesh {
 public:
  /// One degree an axis, in the order of Axis. Called by all ranks at once.
  /// Throws ConfigError, with the way out, if the product is not the number of
  /// ranks.
  Mesh(const World& world, const std::array<int, kNumAxes>& degrees);

  [[nodiscard]] int degree(Axis axis) const;
  /// This rank's place along the axis.
  [[nodiscard]] int coordinate(Axis axis) const;

  /// The ranks that differ from this one along `axis` only. Made at
  /// construction.
  [[nodiscard]] const Group& group(Axis axis) const;
  /// The ranks that differ along any of `axes`. Made at the first call, which
  /// all of them must make.
  [[nodiscard]] Group group(std::initializer_list<Axis> axes) const;
  [[nodiscard]] Group group(std::span<const Axis> axes) const;

  /// Ranks with different batch ranks read different data; replicas and shards
  /// do, the other axes share a batch.
  [[nodiscard]] int batch_rank() const;
  [[nodiscard]] int batch_count() const;
  /// One rank per batch, by batch rank: this rank and those that differ from it
  /// along replicate and shard. Samples are gathered, counted and split among
  /// them, so that each counts once, however many ranks share a batch. Made at
  /// construction.
  [[nodiscard]] const Group& batch_group() const;
  /// The ranks that average the gradients of a parameter that is not split:
  /// those of `batch_group()`, and, where the sequence is split, those that
  /// have other parts of it. Made at construction.
  [[nodiscard]] const Group& gradient_group() const;

  /// All ranks, whatever they share.
  [[nodiscard]] const World& world() const;

  [[nodiscard]] const std::shared_ptr<detail::MeshImpl>& impl() const {
    return impl_;
  }

 private:
  std::shared_ptr<detail::MeshImpl> impl_;
};

}  // namespace accelerate
