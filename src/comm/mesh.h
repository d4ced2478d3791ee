#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/parallel.h>

namespace accelerate::detail {

/// The reason why the degrees do not fit the number of ranks, and what to
/// change; nothing if they fit.
std::optional<std::string> mesh_complaint(
    const std::array<int, kNumAxes>& degrees,
    int world_size);

/// The sizes of the grid of a mesh of these degrees, whose product is the number
/// of ranks: `expert`, which folds into other axes, has size 1.
std::array<int, kNumAxes> dense_grid(std::array<int, kNumAxes> degrees);
/// The sizes of the grid of its experts(): `expert` is an axis of its own, and
/// `replicate` and `shard` are what it leaves of theirs.
std::array<int, kNumAxes> expert_grid(std::array<int, kNumAxes> degrees);

/// Coordinates of a rank in a grid of these sizes; neighbouring ranks differ
/// along the last axis.
std::array<int, kNumAxes> mesh_coordinates(
    const std::array<int, kNumAxes>& grid,
    int rank);

/// The ranks that differ from `rank` along `axes` only, itself included, in
/// ascending order.
std::vector<int> mesh_ranks(
    const std::array<int, kNumAxes>& grid,
    int rank,
    const std::array<bool, kNumAxes>& axes);

/// A second group of an axis's ranks, for traffic that overlaps other traffic
/// among them; one per `purpose`. Made at the first call, which all of these
/// ranks must make.
Group dedicated_group(const Mesh& mesh, Axis axis, const std::string& purpose);

/// A mesh of the same ranks with other degrees, whose messages do not mix with
/// those of `other`. Called by all ranks at once.
Mesh with_degrees(const Mesh& other, const std::array<int, kNumAxes>& degrees);
/// One degree per axis, as they were given.
[[nodiscard]] const std::array<int, kNumAxes>& degrees_of(const Mesh& mesh);

/// The coordinate of any rank along `axis`.
[[nodiscard]] int coordinate_of(const Mesh& mesh, int world_rank, Axis axis);

/// Returns the first of `count` tags that nothing else uses on this mesh or on
/// one made from it by with_degrees(). Called by all ranks in the same order.
int reserve_tags(const Mesh& mesh, int count);

}  // namespace accelerate::detail
