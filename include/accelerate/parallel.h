#pragma once

#include <array>
#include <initializer_list>
#include <memory>
#include <span>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>
#include <accelerate/parallel_options.h>
#include <accelerate/world.h>

namespace accelerate {

namespace detail {
struct MeshImpl;
}  // namespace detail

/// The ranks as a grid with one dimension per axis except `expert`, which folds
/// into `replicate` and `shard`: consecutive ranks along these two hold
/// different experts. A cheap handle.
class ACCELERATE_API Mesh {
 public:
  /// One degree per axis, in the order of Axis. Collective. Throws ConfigError,
  /// saying what to change, if the product of all except `expert` is not the
  /// number of ranks, or if `expert` does not divide `replicate` x `shard` in
  /// whole shards.
  Mesh(const World& world, const std::array<int, kNumAxes>& degrees);

  /// Number of ranks along an axis.
  [[nodiscard]] int degree(Axis axis) const;
  /// This rank's position along the axis.
  [[nodiscard]] int coordinate(Axis axis) const;

  /// The ranks that differ from this one along `axis` only. Made at
  /// construction.
  [[nodiscard]] const Group& group(Axis axis) const;
  /// The ranks that differ from this one along any of `axes`; with `expert`
  /// among them, the axes are those of experts(). Made at the first call, which
  /// is collective among them.
  [[nodiscard]] Group group(std::initializer_list<Axis> axes) const;
  [[nodiscard]] Group group(std::span<const Axis> axes) const;

  /// Ranks with different batch ranks read different data. They differ along
  /// replicate or shard; ranks along the other axes share a batch.
  [[nodiscard]] int batch_rank() const;
  /// Number of batches that the ranks read at once.
  [[nodiscard]] int batch_count() const;
  /// One rank per batch, by batch rank: this rank and those that differ from it
  /// along replicate and shard. Samples are gathered, counted and split among
  /// them, so that each counts once, regardless of how many ranks share a
  /// batch. Made at construction.
  [[nodiscard]] const Group& batch_group() const;
  /// The ranks that average the gradients of an unsharded parameter: those of
  /// `batch_group()` and, if the sequence is sharded, those that have its other
  /// shards. Made at construction.
  [[nodiscard]] const Group& gradient_group() const;

  /// This mesh's ranks as a grid for the parameters of experts: `expert` is a
  /// dimension like any other, and `replicate` and `shard` have the ranks that
  /// it leaves. With 2 replicas, 4 shards and 2 expert ranks, experts have 2
  /// replicas and 2 shards. This mesh itself if the degree of `expert` is 1.
  [[nodiscard]] Mesh experts() const;

  /// All ranks.
  [[nodiscard]] const World& world() const;

  [[nodiscard]] const std::shared_ptr<detail::MeshImpl>& impl() const {
    return impl_;
  }

 private:
  explicit Mesh(std::shared_ptr<detail::MeshImpl> impl);

  detail::KeptPtr<detail::MeshImpl> impl_;
};

}  // namespace accelerate
