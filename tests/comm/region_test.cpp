// Collectives that autograd records: each rank's values and gradients equal
// those of the same mathematics in one process.
#include "comm/autograd/region.h"

#include <functional>
#include <numeric>

#include <accelerate/error.h>
#include <rapidcheck.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace region_test {

using detail::GatheredGradient;
using testing::run_in_worlds;
using torch::Tensor;

// Values that every rank can compute for every other rank.
Tensor values(std::vector<std::int64_t> shape, int seed) {
  const auto count = std::accumulate(
      shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  return torch::sin(torch::arange(count, torch::kDouble) * 0.7 + seed)
      .view(shape);
}

std::vector<std::int64_t> shape_with(
    std::vector<std::int64_t> shape,
    std::int64_t dim,
    std::int64_t size) {
  shape.at(static_cast<std::size_t>(dim)) = size;
  return shape;
}

Tensor slice_of(const Tensor& tensor, std::int64_t dim, const Group& group) {
  const auto begins = detail::slice_begins(tensor.size(dim), group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  return tensor.narrow(dim, begins[rank], begins[rank + 1] - begins[rank]);
}

// The sum of `of(rank)` over the ranks.
Tensor sum_over(const Group& group, const std::function<Tensor(int)>& of) {
  Tensor sum = of(0).clone();
  for (int rank = 1; rank < group.size(); ++rank) sum += of(rank);
  return sum;
}

Tensor
gradient_of(const Tensor& output, const Tensor& input, const Tensor& weights) {
  return torch::autograd::grad({output}, {input}, {weights}).front();
}

void expect_near(const Tensor& found, const Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  EXPECT_TRUE(torch::allclose(found, expected, 1e-12, 1e-12));
}

TEST(Region, CopyIsTheIdentityAndSumsGradients) {
  run_in_worlds(3, [](const World& world) {
    const Group& group = world.group();
    const Tensor x = values({2, 3}, 0).requires_grad_();
    const Tensor y = detail::copy_to_region(x, group);
    EXPECT_TRUE(torch::equal(y, x));
    expect_near(
        gradient_of(y, x, values({2, 3}, world.rank())),
        sum_over(group, [](int rank) { return values({2, 3}, rank); }));
  });
}

TEST(Region, ReduceSumsAndPassesGradientsOn) {
  run_in_worlds(3, [](const World& world) {
    const Tensor x = values({2, 3}, world.rank()).requires_grad_();
    const Tensor y = detail::reduce_from_region(x, world.group());
    expect_near(y.detach(), sum_over(world.group(), [](int rank) {
                  return values({2, 3}, rank);
                }));
    expect_near(gradient_of(y, x, values({2, 3}, 9)), values({2, 3}, 9));
    // The input is unchanged, and the output can be changed in place.
    EXPECT_TRUE(torch::equal(x.detach(), values({2, 3}, world.rank())));
    (y * 1).add_(1).sum().backward();
  });
}

/// Sizes that divide evenly, that do not, and that leave ranks without any
/// slice.
class RegionAlong
    : public ::testing::TestWithParam<std::tuple<int, std::int64_t, int>> {};

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    RegionAlong,
    ::testing::Combine(
        ::testing::Values(2, 3),
        ::testing::Values(6, 7, 1, 0),
        ::testing::Values(0, 1, 2)));

TEST_P(RegionAlong, SliceGathersGradients) {
  const auto [num_ranks, size, dim] = GetParam();
  run_in_worlds(num_ranks, [size = size, dim = dim](const World& world) {
    const auto shape = shape_with({4, 3, 2}, dim, size);
    const Tensor x = values(shape, 0).requires_grad_();
    const Tensor y = detail::slice_to_region(x, dim - 3, world.group());
    expect_near(y.detach(), slice_of(x.detach(), dim, world.group()));
    const Tensor full = values(shape, 5);
    expect_near(
        gradient_of(y, x, slice_of(full, dim, world.group()).contiguous()),
        full);
  });
}

TEST_P(RegionAlong, GatherSlicesGradientsThatAreEqual) {
  const auto [num_ranks, size, dim] = GetParam();
  run_in_worlds(num_ranks, [size = size, dim = dim](const World& world) {
    const Group& group = world.group();
    const auto shape = shape_with({4, 3, 2}, dim, size);
    const Tensor full = values(shape, 0);
    const Tensor x = slice_of(full, dim, group).clone().requires_grad_();
    const Tensor y =
        detail::gather_from_region(x, dim, group, GatheredGradient::equal);
    expect_near(y.detach(), full);
    const Tensor weights = values(shape, 5);
    expect_near(gradient_of(y, x, weights), slice_of(weights, dim, group));
  });
}

TEST_P(RegionAlong, GatherSumsGradientsThatArePartial) {
  const auto [num_ranks, size, dim] = GetParam();
  run_in_worlds(num_ranks, [size = size, dim = dim](const World& world) {
    const Group& group = world.group();
    const auto shape = shape_with({4, 3, 2}, dim, size);
    const Tensor full = values(shape, 0);
    const Tensor x = slice_of(full, dim, group).clone().requires_grad_();
    std::vector<std::int64_t> sizes;
    const auto begins = detail::slice_begins(size, group.size());
    for (std::size_t r = 0; r + 1 < begins.size(); ++r)
      sizes.push_back(begins[r + 1] - begins[r]);
    const Tensor y = detail::gather_from_region(
        x, dim, group, GatheredGradient::partial, sizes);
    expect_near(y.detach(), full);
    const Tensor sum =
        sum_over(group, [&](int rank) { return values(shape, 5 + rank); });
    expect_near(
        gradient_of(y, x, values(shape, 5 + world.rank())),
        slice_of(sum, dim, group));
  });
}

TEST_P(RegionAlong, ReduceScatterSumsAndGathersGradients) {
  const auto [num_ranks, size, dim] = GetParam();
  run_in_worlds(num_ranks, [size = size, dim = dim](const World& world) {
    const Group& group = world.group();
    const auto shape = shape_with({4, 3, 2}, dim, size);
    const Tensor x = values(shape, world.rank()).requires_grad_();
    const Tensor y = detail::reduce_scatter_to_region(x, dim, group);
    const Tensor sum =
        sum_over(group, [&](int rank) { return values(shape, rank); });
    expect_near(y.detach(), slice_of(sum, dim, group));
    const Tensor weights = values(shape, 5);
    expect_near(
        gradient_of(y, x, slice_of(weights, dim, group).contiguous()), weights);
  });
}

// The second derivative sums over all ranks, each of which has the first
// derivative.
TEST(Region, IsDifferentiableTwice) {
  run_in_worlds(2, [](const World& world) {
    const Tensor x = values({2, 2}, world.rank()).requires_grad_();
    const Tensor y = detail::reduce_from_region(x, world.group());
    const Tensor first = torch::autograd::grad(
                             {y.pow(3).sum()},
                             {x},
                             {},
                             /*retain_graph=*/true,
                             /*create_graph=*/true)
                             .front();
    const Tensor sum = values({2, 2}, 0) + values({2, 2}, 1);
    expect_near(first.detach(), 3 * sum.pow(2));
    const Tensor second = torch::autograd::grad({first.sum()}, {x}).front();
    expect_near(second, 2 * 6 * sum);
  });
}

TEST(Region, RecordsNothingWithoutGradients) {
  run_in_worlds(2, [](const World& world) {
    const torch::NoGradGuard no_grad;
    const Tensor x = values({2, 2}, 0).requires_grad_();
    EXPECT_FALSE(detail::reduce_from_region(x, world.group()).requires_grad());
    EXPECT_TRUE(detail::copy_to_region(x, world.group()).is_same(x));
  });
}

TEST(Region, OfOneRankIsTheIdentity) {
  const Group alone;
  const Tensor x = values({2, 2}, 0).requires_grad_();
  EXPECT_TRUE(detail::copy_to_region(x, alone).is_same(x));
  EXPECT_TRUE(detail::reduce_from_region(x, alone).is_same(x));
  EXPECT_TRUE(detail::slice_to_region(x, -1, alone).is_same(x));
  EXPECT_TRUE(detail::reduce_scatter_to_region(x, 0, alone).is_same(x));
  EXPECT_TRUE(detail::gather_from_region(x, 0, alone, GatheredGradient::equal)
                  .is_same(x));
}

TEST(Region, RefusesSizesThatAreNotThisRanks) {
  run_in_worlds(2, [](const World& world) {
    const std::vector<std::int64_t> sizes{3, 3};
    EXPECT_THROW(
        (void)detail::gather_from_region(
            torch::ones({2, 2}),
            0,
            world.group(),
            GatheredGradient::equal,
            sizes),
        ConfigError);
  });
}

// Slices are in order, differ in size by one at most, and cover all indices.
TEST(SliceBegins, DivideEvenly) {
  EXPECT_TRUE(rc::check([] {
    const auto size = *rc::gen::inRange<std::int64_t>(0, 1000);
    const auto num_ranks = *rc::gen::inRange(1, 20);
    const auto begins = detail::slice_begins(size, num_ranks);
    RC_ASSERT(begins.size() == static_cast<std::size_t>(num_ranks) + 1);
    RC_ASSERT(begins.front() == 0 && begins.back() == size);
    for (std::size_t r = 0; r + 1 < begins.size(); ++r) {
      const std::int64_t count = begins[r + 1] - begins[r];
      RC_ASSERT(count == size / num_ranks || count == size / num_ranks + 1);
    }
  }));
}

}  // namespace region_test
}  // namespace accelerate
