#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <accelerate/parallel.h>

namespace accelerate::detail {

/// Returns why the degrees do not fit the number of ranks, and what to change;
/// nothing if they fit.
std::optional<std::string> mesh_complaint(
    const std::array<int, kNumAxes>& degrees,
    int world_size);

/// Returns the grid sizes of a mesh with these degrees; their product is the
/// number of ranks. `expert`, which folds into other axes, has size 1.
std::array<int, kNumAxes> dense_grid(std::array<int, kNumAxes> degrees);
/// Returns the grid sizes of the mesh's experts(): `expert` is an axis of its
/// own, and `replicate` and `shard` are reduced accordingly.
std::array<int, kNumAxes> expert_grid(std::array<int, kNumAxes> degrees);

/// Returns the coordinates of a rank in a grid of these sizes; neighbouring
/// ranks differ along the last axis.
std::array<int, kNumAxes> mesh_coordinates(
    const std::array<int, kNumAxes>& grid,
    int rank);

/// Returns the ranks, including `rank`, that differ from it only along `axes`,
/// in ascending order.
std::vector<int> mesh_ranks(
    const std::array<int, kNumAxes>& grid,
    int rank,
    const std::array<bool, kNumAxes>& axes);

/// Returns a second group of an axis's ranks, for traffic that overlaps other
/// traffic among them; one per `purpose`. Made by the first call, which all of
/// these ranks must make.
Group dedicated_group(const Mesh& mesh, Axis axis, const std::string& purpose);

/// Returns a mesh of the same ranks with other degrees, whose messages do not
/// mix with those of `other`. Called by all ranks together.
Mesh with_degrees(const Mesh& other, const std::array<int, kNumAxes>& degrees);
/// Returns one degree per axis, as given.
[[nodiscard]] const std::array<int, kNumAxes>& degrees_of(const Mesh& mesh);

/// Returns the coordinate of any rank along `axis`.
[[nodiscard]] int coordinate_of(const Mesh& mesh, int world_rank, Axis axis);

/// Returns the first of `count` tags that nothing else uses on this mesh or on
/// one made from it by with_degrees(). Called by all ranks in the same order.
int reserve_tags(const Mesh& mesh, int count);

}  // namespace accelerate::detail
