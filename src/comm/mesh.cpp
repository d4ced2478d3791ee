#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/mesh.h"

namespace accelerate {

namespace {

using Degrees = std::array<int, kNumAxes>;
using AxisSet = std::array<bool, kNumAxes>;

std::size_t index_of(Axis axis) { return static_cast<std::size_t>(axis); }

std::string_view axis_name(std::size_t index) {
  return name_of(static_cast<Axis>(index));
}

int& at(Degrees& degrees, Axis axis) { return degrees[index_of(axis)]; }
int at(const Degrees& degrees, Axis axis) { return degrees[index_of(axis)]; }

int product(const Degrees& grid) {
  return std::accumulate(grid.begin(), grid.end(), 1, std::multiplies<>());
}

// Why experts cannot be divided by these degrees; nothing if they can.
std::optional<std::string> expert_complaint(const Degrees& degrees) {
  const int experts = at(degrees, Axis::expert);
  const int shards = at(degrees, Axis::shard);
  const int ranks = at(degrees, Axis::replicate) * shards;
  if (ranks % experts != 0) {
    return detail::format(
        "[parallel] expert is {}, but the experts are divided among the ranks "
        "that read different data, replicate ({}) x shard ({}) = {}; set "
        "expert to a divisor of {}",
        experts,
        at(degrees, Axis::replicate),
        shards,
        ranks,
        ranks);
  }
  if (shards % experts == 0 || experts % shards == 0) return std::nullopt;
  return detail::format(
      "[parallel] expert is {} and shard {}, so that ranks with the same "
      "expert would be at different places of a replica; set expert to a "
      "divisor or a multiple of {}",
      experts,
      shards,
      shards);
}

// Returns advice such as "set shard to 2 or launch 16 processes"; offers a new
// degree if changing one is enough.
std::string remedy(const Degrees& degrees, int size) {
  for (std::size_t i = 0; i < degrees.size(); ++i) {
    if (i == index_of(Axis::expert)) continue;
    const int rest = product(degrees) / degrees[i];
    if (degrees[i] > 1 && size % rest == 0) {
      return detail::format(
          "set {} to {} or launch {} processes",
          axis_name(i),
          size / rest,
          product(degrees));
    }
  }
  return detail::format("launch {} processes", product(degrees));
}

}  // namespace

namespace detail {

std::optional<std::string> mesh_complaint(
    const Degrees& degrees,
    int world_size) {
  std::vector<std::string> factors;
  for (std::size_t i = 0; i < degrees.size(); ++i) {
    if (degrees[i] < 1) {
      return format(
          "[parallel] the degree {} must be at least 1, but is {}",
          axis_name(i),
          degrees[i]);
    }
    if (degrees[i] > 1 && i != index_of(Axis::expert))
      factors.push_back(format("{} ({})", axis_name(i), degrees[i]));
  }
  const Degrees grid = dense_grid(degrees);
  if (product(grid) == world_size) return expert_complaint(degrees);
  if (factors.empty()) factors.emplace_back("every degree (1)");
  return format(
      "[parallel] {} = {} ranks, but the launcher started {}; {}",
      join(factors, " x "),
      product(grid),
      world_size,
      remedy(grid, world_size));
}

std::array<int, kNumAxes> dense_grid(Degrees degrees) {
  at(degrees, Axis::expert) = 1;
  return degrees;
}

std::array<int, kNumAxes> expert_grid(Degrees degrees) {
  int& replicate = at(degrees, Axis::replicate);
  int& shard = at(degrees, Axis::shard);
  const int experts = at(degrees, Axis::expert);
  if (experts <= shard) {
    shard /= experts;
  } else {
    replicate /= experts / shard;
    shard = 1;
  }
  return degrees;
}

std::array<int, kNumAxes> mesh_coordinates(const Degrees& grid, int rank) {
  Degrees coordinates{};
  for (std::size_t i = kNumAxes; i-- > 0;) {
    coordinates[i] = rank % grid[i];
    rank /= grid[i];
  }
  return coordinates;
}

std::vector<int> mesh_ranks(
    const Degrees& grid,
    int rank,
    const std::array<bool, kNumAxes>& axes) {
  const Degrees own = mesh_coordinates(grid, rank);
  std::vector<int> ranks;
  for (int other = 0; other < product(grid); ++other) {
    const Degrees coordinates = mesh_coordinates(grid, other);
    bool belongs = true;
    for (std::size_t i = 0; i < kNumAxes; ++i) {
      belongs = belongs && (axes[i] || coordinates[i] == own[i]);
    }
    if (belongs) ranks.push_back(other);
  }
  return ranks;
}

struct MeshImpl {
  World world;
  /// The degrees as requested.
  Degrees degrees;
  /// The product of its sizes is the number of ranks.
  Degrees grid;
  Degrees coordinates = mesh_coordinates(grid, world.rank());
  std::array<Group, kNumAxes> groups = {};
  std::map<AxisSet, Group> joint_groups = {};
  std::map<std::pair<std::size_t, std::string>, Group> purpose_groups = {};
  Group batch_group = {};
  Group gradient_group = {};
  /// Null if this is the experts' mesh itself, or nothing is divided along
  /// `expert`.
  std::shared_ptr<MeshImpl> experts = nullptr;
  /// Shared by all meshes of these ranks.
  std::shared_ptr<int> next_tag = std::make_shared<int>(1);

  [[nodiscard]] Group make(const AxisSet& axes) const {
    const std::vector<int> ranks = mesh_ranks(grid, world.rank(), axes);
    if (ranks.size() == 1) return {};
    if (static_cast<int>(ranks.size()) == world.size()) return world.group();
    return world.new_group(ranks);
  }

  /// Makes the groups of all axes, except groups that `known` already has.
  void make_groups(const MeshImpl* known) {
    for (std::size_t i = 0; i < kNumAxes; ++i) {
      AxisSet axes{};
      axes[i] = true;
      const bool is_known = known != nullptr &&
          mesh_ranks(grid, world.rank(), axes) ==
              mesh_ranks(known->grid, world.rank(), axes);
      groups[i] = is_known ? known->groups[i] : make(axes);
    }
  }
};

namespace {

std::shared_ptr<MeshImpl> make_experts(const MeshImpl& dense) {
  const Degrees grid = expert_grid(dense.degrees);
  auto experts = std::make_shared<MeshImpl>(
      MeshImpl{.world = dense.world, .degrees = grid, .grid = grid});
  experts->make_groups(&dense);
  experts->batch_group = dense.batch_group;
  experts->gradient_group = dense.gradient_group;
  experts->next_tag = dense.next_tag;
  return experts;
}

}  // namespace

}  // namespace detail

Mesh::Mesh(const World& world, const Degrees& degrees) {
  if (const auto complaint = detail::mesh_complaint(degrees, world.size())) {
    throw ConfigError(*complaint);
  }
  impl_ = std::make_shared<detail::MeshImpl>(detail::MeshImpl{
      .world = world, .degrees = degrees, .grid = detail::dense_grid(degrees)});
  impl_->make_groups(nullptr);
  impl_->batch_group = group({Axis::replicate, Axis::shard});
  impl_->gradient_group = group({Axis::replicate, Axis::shard, Axis::context});
  if (degree(Axis::expert) == 1) return;
  impl_->experts = detail::make_experts(*impl_);
  impl_->groups[index_of(Axis::expert)] =
      impl_->experts->groups[index_of(Axis::expert)];
  impl_->coordinates[index_of(Axis::expert)] =
      impl_->experts->coordinates[index_of(Axis::expert)];
}

Mesh::Mesh(std::shared_ptr<detail::MeshImpl> impl) : impl_(std::move(impl)) {}

Mesh Mesh::experts() const {
  return impl_->experts ? Mesh(impl_->experts) : *this;
}

int Mesh::degree(Axis axis) const { return impl_->degrees[index_of(axis)]; }

int Mesh::coordinate(Axis axis) const {
  return impl_->coordinates[index_of(axis)];
}

const Group& Mesh::group(Axis axis) const {
  return impl_->groups[index_of(axis)];
}

Group Mesh::group(std::initializer_list<Axis> axes) const {
  return group(std::span(axes.begin(), axes.size()));
}

Group Mesh::group(std::span<const Axis> axes) const {
  AxisSet set{};
  if (impl_->experts && std::ranges::find(axes, Axis::expert) != axes.end()) {
    return experts().group(axes);
  }
  // Axes of degree 1 add no ranks; without them, the existing group is found.
  for (const Axis axis : axes) set[index_of(axis)] = degree(axis) > 1;
  const auto count = std::ranges::count(set, true);
  if (count == 0) return {};
  if (count == 1) {
    return impl_->groups[static_cast<std::size_t>(
        std::ranges::find(set, true) - set.begin())];
  }
  const auto found = impl_->joint_groups.find(set);
  if (found != impl_->joint_groups.end()) return found->second;
  return impl_->joint_groups.emplace(set, impl_->make(set)).first->second;
}

int Mesh::batch_rank() const { return impl_->batch_group.rank(); }

int Mesh::batch_count() const { return impl_->batch_group.size(); }

const Group& Mesh::batch_group() const { return impl_->batch_group; }

const Group& Mesh::gradient_group() const { return impl_->gradient_group; }

const World& Mesh::world() const { return impl_->world; }

namespace detail {

Mesh with_degrees(const Mesh& other, const Degrees& degrees) {
  Mesh mesh(other.world(), degrees);
  mesh.impl()->next_tag = other.impl()->next_tag;
  return mesh;
}

const Degrees& degrees_of(const Mesh& mesh) { return mesh.impl()->degrees; }

int coordinate_of(const Mesh& mesh, int world_rank, Axis axis) {
  const Mesh grid = axis == Axis::expert ? mesh.experts() : mesh;
  return mesh_coordinates(grid.impl()->grid, world_rank)[index_of(axis)];
}

Group dedicated_group(const Mesh& mesh, Axis axis, const std::string& purpose) {
  const Group& group = mesh.group(axis);
  if (group.size() == 1) return group;
  MeshImpl& impl = *mesh.impl();
  const auto key = std::pair(index_of(axis), purpose);
  const auto found = impl.purpose_groups.find(key);
  if (found != impl.purpose_groups.end()) return found->second;
  return impl.purpose_groups
      .emplace(key, impl.world.new_group(group.world_ranks()))
      .first->second;
}

int reserve_tags(const Mesh& mesh, int count) {
  int& next = *mesh.impl()->next_tag;
  return std::exchange(next, next + count);
}

}  // namespace detail

}  // namespace accelerate
