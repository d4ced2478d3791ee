// Random numbers for slices: independent between ranks in a region, the same
// outside, and the same again when a forward is recomputed.
#include "parallel/random_region.h"

#include <accelerate/activation_checkpointing.h>

#include <torch/torch.h>

namespace accelerate {
namespace random_region_test {

using detail::enter_random_region;
using detail::leave_random_region;
using torch::Tensor;

constexpr std::int64_t kCount = 20000;

/// While it lives, this thread draws one rank's random numbers.
class OnRank {
 public:
  explicit OnRank(int rank, Axis axis = Axis::tensor) {
    enter_random_region(this, detail::random_stream_of(axis, rank));
  }
  ~OnRank() { leave_random_region(this); }
};

Tensor dropped() { return torch::dropout(torch::ones({kCount}), 0.5, true); }

double correlation(const Tensor& a, const Tensor& b) {
  const Tensor x = a - a.mean(), y = b - b.mean();
  return ((x * y).mean() / (x.std() * y.std())).item<double>();
}

// Five standard deviations of the correlation of independent numbers.
const double kIndependent = 5 / std::sqrt(static_cast<double>(kCount));

TEST(RandomRegion, RanksDrawIndependentNumbers) {
  std::vector<Tensor> masks;
  for (int rank = 0; rank < 4; ++rank) {
    torch::manual_seed(3);
    const OnRank region(rank);
    masks.push_back(dropped());
    masks.push_back(dropped());
    masks.push_back(torch::rand({kCount}));
    masks.push_back(torch::randn({kCount}));
  }
  torch::manual_seed(3);
  masks.push_back(dropped());
  for (std::size_t i = 0; i < masks.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_LT(std::abs(correlation(masks[i], masks[j])), kIndependent)
          << i << " and " << j;
    if (i % 4 < 2) {
      EXPECT_NEAR(masks[i].mean().item<double>(), 1, kIndependent);
    }
  }
}

TEST(RandomRegion, NumbersFollowFromTheSeed) {
  const auto draw = [] {
    const OnRank region(1);
    return torch::rand({5});
  };
  torch::manual_seed(3);
  const Tensor first = draw(), second = draw();
  EXPECT_FALSE(torch::equal(first, second));
  torch::manual_seed(3);
  EXPECT_TRUE(torch::equal(draw(), first));
  EXPECT_TRUE(torch::equal(draw(), second));
}

TEST(RandomRegion, RanksStayTogetherOutside) {
  std::vector<Tensor> after;
  for (int rank = 0; rank < 3; ++rank) {
    torch::manual_seed(3);
    {
      const OnRank region(rank);
      // Ranks draw different amounts, as for slices of different sizes.
      for (int i = 0; i <= rank; ++i) torch::rand({10 + rank});
    }
    after.push_back(torch::rand({5}));
  }
  EXPECT_TRUE(torch::equal(after[0], after[1]));
  EXPECT_TRUE(torch::equal(after[0], after[2]));
}

TEST(RandomRegion, DrawsNothingWithoutRandomOperators) {
  torch::manual_seed(3);
  const Tensor expected = torch::rand({5});
  torch::manual_seed(3);
  {
    const OnRank region(1);
    torch::dropout(torch::ones({5}), 0.5, /*train=*/false);
    torch::ones({3}).mul_(2);
  }
  EXPECT_TRUE(torch::equal(torch::rand({5}), expected));
}

TEST(RandomRegion, LeavesOtherThreadsAndGivenGeneratorsAlone) {
  torch::manual_seed(3);
  const Tensor expected = torch::rand({5});
  at::Generator generator = at::detail::createCPUGenerator(7);
  const Tensor own = torch::rand({5}, generator);
  generator.set_current_seed(7);
  torch::manual_seed(3);
  const OnRank region(1);
  Tensor elsewhere;
  std::thread([&] { elsewhere = torch::rand({5}); }).join();
  EXPECT_TRUE(torch::equal(elsewhere, expected));
  EXPECT_TRUE(torch::equal(torch::rand({5}, generator), own));
}

TEST(RandomRegion, NestedRegionsDependOnBoth) {
  std::vector<Tensor> masks;
  for (int outer = 0; outer < 2; ++outer) {
    for (int inner = 0; inner < 2; ++inner) {
      torch::manual_seed(3);
      const OnRank context(outer, Axis::context);
      const OnRank tensor(inner);
      masks.push_back(dropped());
    }
  }
  for (std::size_t i = 0; i < masks.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_LT(std::abs(correlation(masks[i], masks[j])), kIndependent);
  }
  // Ranks that differ along the inner axis stay together in the outer region.
  std::vector<Tensor> after;
  for (int inner = 0; inner < 2; ++inner) {
    torch::manual_seed(3);
    const OnRank context(1, Axis::context);
    {
      const OnRank tensor(inner);
      dropped();
    }
    after.push_back(dropped());
  }
  EXPECT_TRUE(torch::equal(after[0], after[1]));
}

TEST(RandomRegion, AnOwnerHasOneRegion) {
  torch::manual_seed(3);
  const int owner = 0, other = 0;
  enter_random_region(&owner, 1);
  const Tensor first = torch::rand({5});
  enter_random_region(&owner, 2);
  enter_random_region(&other, 3);
  leave_random_region(&owner);
  // The regions inside it have ended, too.
  const Tensor after = torch::rand({5});
  leave_random_region(&other);
  leave_random_region(&owner);
  torch::manual_seed(3);
  {
    const OnRank region(0);
    enter_random_region(&owner, 1);
    leave_random_region(&owner);
    torch::rand({1});
  }
  EXPECT_TRUE(torch::equal(torch::rand({5}), after));
  EXPECT_FALSE(torch::equal(first, after));
}

TEST(RandomRegion, RecomputationDrawsTheSameNumbers) {
  torch::manual_seed(3);
  const Tensor x = torch::ones({kCount}).requires_grad_();
  const Tensor y = checkpoint([&] {
    Tensor z = torch::dropout(x * 1, 0.5, true);
    {
      const OnRank region(1);
      // Saves its input, so that everything before it is recomputed.
      z = torch::dropout(z.exp(), 0.5, true);
    }
    return torch::dropout(z.exp(), 0.5, true);
  });
  const Tensor next = torch::rand({5});
  y.sum().backward();
  // The gradient according to the forward's masks: 0 where y is 0.
  const Tensor expected = [&] {
    torch::manual_seed(3);
    const Tensor plain = torch::ones({kCount}).requires_grad_();
    Tensor z = torch::dropout(plain * 1, 0.5, true);
    {
      const OnRank region(1);
      z = torch::dropout(z.exp(), 0.5, true);
    }
    const Tensor out = torch::dropout(z.exp(), 0.5, true);
    EXPECT_TRUE(torch::equal(out, y));
    EXPECT_TRUE(torch::equal(torch::rand({5}), next));
    out.sum().backward();
    return plain.grad();
  }();
  EXPECT_TRUE(torch::equal(x.grad(), expected));
}

}  // namespace random_region_test
}  // namespace accelerate
