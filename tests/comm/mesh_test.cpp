#include <accelerate/error.h>
#include <accelerate/parallel.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace mesh_test {

using testing::expect_error;
using testing::run_in_worlds;

TEST(Mesh, PutsNeighbouringRanksIntoOneTensorGroup) {
  run_in_worlds(4, [](const World& world) {
    const Mesh mesh(
        world,
        {1,
         2,
         1,
         1,
         1,
         2});  // pipeline, replicate, shard, expert, context, tensor
    EXPECT_EQ(mesh.coordinate(Axis::tensor), world.rank() % 2);
    EXPECT_EQ(mesh.coordinate(Axis::replicate), world.rank() / 2);
    const int pair = world.rank() / 2 * 2;
    EXPECT_EQ(
        mesh.group(Axis::tensor).world_ranks(),
        (std::vector<int>{pair, pair + 1}));
    const int column = world.rank() % 2;
    EXPECT_EQ(
        mesh.group(Axis::replicate).world_ranks(),
        (std::vector<int>{column, column + 2}));
    EXPECT_EQ(mesh.group(Axis::shard).size(), 1);
    EXPECT_EQ(mesh.batch_rank(), world.rank() / 2);
    EXPECT_EQ(mesh.batch_count(), 2);
  });
}

TEST(Mesh, GivesReplicasAndShardsDifferentData) {
  run_in_worlds(4, [](const World& world) {
    const Mesh mesh(world, {1, 2, 2, 1, 1, 1});
    EXPECT_EQ(mesh.batch_count(), 4);
    EXPECT_EQ(mesh.batch_rank(), world.rank());
    const Group both = mesh.group({Axis::replicate, Axis::shard});
    EXPECT_EQ(both.size(), 4);
    const auto value = torch::ones({});
    both.all_reduce(value);
    EXPECT_EQ(value.item<double>(), 4);
  });
}

TEST(Mesh, DistinguishesBatchAndGradientGroups) {
  run_in_worlds(8, [](const World& world) {
    const Mesh mesh(world, {1, 2, 1, 1, 2, 2});
    const int tensor = world.rank() % 2;
    const int context = world.rank() / 2 % 2;
    const int first = 2 * context + tensor;
    EXPECT_EQ(
        mesh.batch_group().world_ranks(), (std::vector<int>{first, first + 4}));
    EXPECT_EQ(mesh.batch_group().rank(), mesh.batch_rank());
    EXPECT_EQ(
        mesh.gradient_group().world_ranks(),
        (std::vector<int>{tensor, tensor + 2, tensor + 4, tensor + 6}));
    EXPECT_EQ(mesh.world().size(), 8);
    const auto sum = torch::ones({});
    mesh.gradient_group().all_reduce(sum);
    EXPECT_EQ(sum.item<double>(), 4);
  });
}

TEST(Mesh, SuggestsDegreesThatFit) {
  run_in_worlds(2, [](const World& world) {
    expect_error<ConfigError>(
        [&] { Mesh(world, {1, 2, 2, 1, 1, 1}); },
        "[parallel] replicate (2) x shard (2) = 4 ranks, but the launcher "
        "started 2");
    expect_error<ConfigError>(
        [&] { Mesh(world, {1, 0, 1, 1, 1, 1}); }, "at least 1");
  });
}

}  // namespace mesh_test
}  // namespace accelerate
