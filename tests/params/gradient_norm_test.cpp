#include "params/gradient_norm.h"

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate::detail {
namespace gradient_norm_test {

using testing::run_in_worlds;

Parameter row_of(const torch::Tensor& gradient, std::vector<Axis> axes = {}) {
  Parameter row;
  row.local = torch::zeros_like(gradient).requires_grad_();
  row.local.mutable_grad() = gradient;
  row.layout.split_axes = std::move(axes);
  return row;
}

double norm_of(const std::vector<Parameter>& rows, const Mesh& mesh, double p) {
  std::vector<PlacedParameter> placed;
  for (const Parameter& row : rows) placed.push_back({&row, &mesh});
  return gradient_norm(placed, p).item<double>();
}

TEST(GradientNorm, IsThatOfAllGradientsTogether) {
  run_in_worlds(1, [](const World& world) {
    const Mesh mesh(world, {1, 1, 1, 1, 1, 1});
    std::vector<Parameter> rows{
        row_of(torch::tensor({3.0, 0.0})),
        row_of(torch::tensor({-4.0}).to(at::kBFloat16))};
    EXPECT_DOUBLE_EQ(norm_of(rows, mesh, 2), 5);
    EXPECT_DOUBLE_EQ(norm_of(rows, mesh, 1), 7);
    EXPECT_NEAR(norm_of(rows, mesh, 3), std::cbrt(27 + 64), 1e-6);
    EXPECT_DOUBLE_EQ(norm_of(rows, mesh, INFINITY), 4);
    EXPECT_DOUBLE_EQ(norm_of({}, mesh, 2), 0);
    testing::expect_error<ConfigError>(
        [&] { norm_of(rows, mesh, 0); }, "above 0");
  });
}

TEST(GradientNorm, CountsReplicatedRowsOnceAndShardedRowsInFull) {
  run_in_worlds(4, [](const World& world) {
    const Mesh mesh(world, {1, 2, 2, 1, 1, 1});
    // Split over two ranks: together (3, 4). Replicated: 12 on all ranks.
    std::vector<Parameter> rows{
        row_of(
            torch::tensor({mesh.coordinate(Axis::shard) == 0 ? 3.0 : 4.0}),
            {Axis::shard}),
        row_of(torch::tensor({12.0}))};
    EXPECT_DOUBLE_EQ(norm_of(rows, mesh, 2), 13);
    EXPECT_DOUBLE_EQ(norm_of(rows, mesh, 1), 19);
    EXPECT_DOUBLE_EQ(norm_of(rows, mesh, INFINITY), 12);
  });
}

TEST(GradientNorm, IsCollectiveAlsoWithoutGradients) {
  run_in_worlds(2, [](const World& world) {
    const Mesh mesh(world, {1, 1, 2, 1, 1, 1});
    Parameter row = row_of(torch::tensor({2.0}), {Axis::shard});
    if (world.rank() == 1) row.local.mutable_grad().reset();
    EXPECT_DOUBLE_EQ(norm_of({row}, mesh, 2), 2);
  });
}

TEST(Writer, IsTheRankAtZeroOfEveryAxisNotSplitOver) {
  run_in_worlds(4, [](const World& world) {
    const Mesh mesh(world, {1, 2, 2, 1, 1, 1});
    Layout split = Layout::unsharded({4});
    split.split_axes = {Axis::shard};
    EXPECT_EQ(is_writer(split, mesh), mesh.coordinate(Axis::replicate) == 0);
    EXPECT_EQ(is_writer(Layout::unsharded({4}), mesh), world.rank() == 0);
  });
}

}  // namespace gradient_norm_test
}  // namespace accelerate::detail
