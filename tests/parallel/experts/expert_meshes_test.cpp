// Which ranks hold the same expert, and what follows from that for layouts,
// writers and norms.
#include <cmath>

#include <accelerate/accelerate.h>

#include "comm/mesh.h"
#include "params/gradient_norm.h"
#include "params/layout.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace expert_meshes_test {

using detail::expert_grid;
using detail::Layout;
using detail::mesh_complaint;
using testing::expect_error;
using testing::run_in_worlds;

using Degrees = std::array<int, kNumAxes>;
using Ranks = std::vector<int>;

// Pipeline, replicate, shard, expert, context, tensor.
TEST(ExpertMesh, DividesShardsFirst) {
  EXPECT_EQ(expert_grid({2, 3, 4, 2, 5, 6}), (Degrees{2, 3, 2, 2, 5, 6}));
  EXPECT_EQ(expert_grid({1, 3, 4, 4, 1, 1}), (Degrees{1, 3, 1, 4, 1, 1}));
  EXPECT_EQ(expert_grid({1, 4, 2, 4, 1, 1}), (Degrees{1, 2, 1, 4, 1, 1}));
  EXPECT_EQ(expert_grid({1, 6, 1, 3, 2, 1}), (Degrees{1, 2, 1, 3, 2, 1}));
}

TEST(ExpertMesh, RefusesDegreesThatDivideNothing) {
  EXPECT_FALSE(mesh_complaint({1, 4, 1, 2, 1, 1}, 4));
  EXPECT_FALSE(mesh_complaint({1, 2, 2, 4, 1, 1}, 4));
  const auto complaint = [](const Degrees& degrees, int size) {
    return mesh_complaint(degrees, size).value_or("");
  };
  EXPECT_EQ(
      complaint({1, 2, 2, 3, 1, 1}, 4),
      "[parallel] expert is 3, but the experts are divided among the ranks "
      "that read different data, replicate (2) x shard (2) = 4; set expert to "
      "a divisor of 4");
  EXPECT_EQ(
      complaint({1, 3, 4, 6, 1, 1}, 12),
      "[parallel] expert is 6 and shard 4, so that ranks with the same expert "
      "would be at different places of a replica; set expert to a divisor or a "
      "multiple of 4");
  // Tensor-parallel ranks have the same tokens.
  EXPECT_THAT(
      complaint({1, 1, 1, 2, 1, 2}, 2), ::testing::HasSubstr("expert is 2"));
  EXPECT_THAT(
      complaint({1, 1, 1, 0, 1, 1}, 1), ::testing::HasSubstr("least 1"));
  // The number of processes does not depend on `expert`.
  EXPECT_THAT(
      complaint({1, 2, 2, 2, 1, 1}, 2),
      ::testing::HasSubstr("replicate (2) x shard (2) = 4 ranks"));
}

TEST(ExpertMesh, LetsNeighboursHoldDifferentExperts) {
  run_in_worlds(8, [](const World& world) {
    const Mesh mesh(world, {1, 2, 2, 2, 1, 2});
    const int rank = world.rank();
    EXPECT_EQ(mesh.degree(Axis::expert), 2);
    EXPECT_EQ(mesh.coordinate(Axis::expert), rank / 2 % 2);
    EXPECT_EQ(mesh.batch_count(), 4);
    EXPECT_EQ(mesh.batch_rank(), rank / 2);
    const int base = rank / 4 * 4 + rank % 2;
    EXPECT_EQ(mesh.group(Axis::expert).world_ranks(), (Ranks{base, base + 2}));
    EXPECT_EQ(mesh.group(Axis::shard).world_ranks(), (Ranks{base, base + 2}));
    const Mesh experts = mesh.experts();
    EXPECT_EQ(experts.degree(Axis::replicate), 2);
    EXPECT_EQ(experts.degree(Axis::shard), 1);
    EXPECT_EQ(experts.coordinate(Axis::replicate), rank / 4);
    EXPECT_EQ(
        experts.group(Axis::replicate).world_ranks(),
        (Ranks{rank % 4, rank % 4 + 4}));
    EXPECT_EQ(experts.batch_rank(), mesh.batch_rank());
    EXPECT_EQ(mesh.group({Axis::expert, Axis::tensor}).size(), 4);
    EXPECT_EQ(experts.experts().degree(Axis::expert), 2);
    const auto sum = torch::ones({});
    experts.group({Axis::replicate, Axis::shard, Axis::context})
        .all_reduce(sum);
    EXPECT_EQ(sum.item<double>(), 2);
  });
}

TEST(ExpertMesh, SpansReplicasIfThereAreFewerShards) {
  run_in_worlds(4, [](const World& world) {
    const Mesh mesh(world, {1, 2, 2, 4, 1, 1});
    EXPECT_EQ(mesh.coordinate(Axis::expert), world.rank());
    EXPECT_EQ(mesh.group(Axis::expert).size(), 4);
    const Mesh experts = mesh.experts();
    EXPECT_EQ(experts.degree(Axis::replicate), 1);
    EXPECT_EQ(experts.degree(Axis::shard), 1);
  });
  run_in_worlds(2, [](const World& world) {
    const Mesh mesh(world, {1, 2, 1, 1, 1, 1});
    EXPECT_EQ(mesh.experts().impl(), mesh.impl());
    EXPECT_EQ(mesh.group(Axis::expert).size(), 1);
  });
}

TEST(ExpertMesh, SaysWhichRankSavesAnExpert) {
  run_in_worlds(8, [](const World& world) {
    const Mesh mesh(world, {1, 2, 4, 2, 1, 1});
    const int rank = world.rank();
    Layout layout = Layout::unsharded({8, 3});
    EXPECT_EQ(replica_group(layout, mesh).size(), 8);
    EXPECT_EQ(is_writer(layout, mesh), rank == 0);
    layout.split(Axis::expert, 0, 4 * (rank % 2), 4);
    // The ranks that hold this expert.
    EXPECT_EQ(
        replica_group(layout, mesh).world_ranks(),
        (Ranks{rank % 2, rank % 2 + 2, rank % 2 + 4, rank % 2 + 6}));
    EXPECT_EQ(is_writer(layout, mesh), rank < 2);
    layout.split(Axis::shard, 0, 2 * (rank / 2 % 2), 2);
    EXPECT_EQ(
        replica_group(layout, mesh).world_ranks(),
        (Ranks{rank % 4, rank % 4 + 4}));
    EXPECT_EQ(is_writer(layout, mesh), rank < 4);
    // A dense parameter of the same model.
    Layout dense = Layout::unsharded({8});
    dense.split(Axis::shard, 0, 2 * (rank % 4), 2);
    EXPECT_EQ(is_writer(dense, mesh), rank < 4);
  });
}

TEST(ExpertMesh, CountsEachExpertOnceInNorms) {
  run_in_worlds(4, [](const World& world) {
    const Mesh mesh(world, {1, 2, 2, 2, 1, 1});
    const int rank = world.rank();
    std::vector<detail::Parameter> rows(3);
    const auto give = [&](std::size_t row, double value) {
      rows[row].local = torch::zeros({2}).requires_grad_();
      rows[row].local.mutable_grad() =
          torch::tensor({value, 0.0}, torch::kFloat);
    };
    // Gradients: 3 and 4 for experts, 5 and 7 for dense shards, 2 for a
    // replica.
    give(0, rank % 2 == 0 ? 3 : 4);
    rows[0].layout.split_axes = {Axis::expert};
    give(1, rank % 2 == 0 ? 5 : 7);
    rows[1].layout.split_axes = {Axis::shard};
    give(2, 2);
    std::vector<detail::PlacedParameter> placed;
    for (const auto& row : rows) placed.push_back({&row, &mesh});
    EXPECT_NEAR(
        detail::gradient_norm(placed, 2).item<double>(),
        std::sqrt(9.0 + 16 + 25 + 49 + 4),
        1e-5);
    EXPECT_NEAR(
        detail::gradient_norm(placed, INFINITY).item<double>(), 7, 1e-6);
  });
}

}  // namespace expert_meshes_test
}  // namespace accelerate
