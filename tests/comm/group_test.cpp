#include <accelerate/error.h>
#include <accelerate/objects.h>
#include <accelerate/world.h>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace group_test {

using testing::expect_error;
using testing::run_in_worlds;
using testing::run_on_ranks;

const std::vector<at::ScalarType> kAllTypes{
    at::kBool,
    at::kByte,
    at::kChar,
    at::kShort,
    at::kInt,
    at::kLong,
    at::kHalf,
    at::kBFloat16,
    at::kFloat,
    at::kDouble,
    at::kComplexFloat,
    at::kComplexDouble,
    at::kFloat8_e4m3fn,
    at::kFloat8_e5m2};

class GroupOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(GroupOfRanks, SumsEveryType) {
  run_in_worlds(GetParam(), [](const World& world) {
    const int n = world.size();
    for (const at::ScalarType type : kAllTypes) {
      const auto value =
          torch::full({3}, world.rank() + 1, at::kFloat).to(type);
      world.group().all_reduce(value);
      const auto expected = type == at::kBool
          ? torch::ones({3})
          : torch::full({3}, n * (n + 1) / 2.0);
      EXPECT_TRUE(torch::equal(
          value.to(at::kComplexDouble), expected.to(at::kComplexDouble)))
          << c10::toString(type) << " " << value;
    }
  });
}

TEST_P(GroupOfRanks, MovesEveryTypeUnchanged) {
  run_in_worlds(GetParam(), [](const World& world) {
    for (const at::ScalarType type : kAllTypes) {
      const auto own =
          torch::full({2, 2}, world.rank() + 1, at::kFloat).to(type);
      const auto parts = world.group().all_gather(own);
      ASSERT_EQ(parts.size(), static_cast<std::size_t>(world.size()));
      for (int r = 0; r < world.size(); ++r) {
        EXPECT_TRUE(torch::equal(
            parts[static_cast<std::size_t>(r)].to(at::kDouble),
            torch::full({2, 2}, r + 1, at::kFloat).to(type).to(at::kDouble)))
            << c10::toString(type);
      }
      world.group().broadcast(own, world.size() - 1);
      EXPECT_EQ(
          own.to(at::kDouble)[0][0].item<double>(),
          type == at::kBool ? 1 : world.size());
    }
  });
}

TEST_P(GroupOfRanks, ReducesWithEveryOperation) {
  run_in_worlds(GetParam(), [](const World& world) {
    const int n = world.size();
    const auto reduced = [&](ReduceOp op, at::ScalarType type) {
      const auto value = torch::full({}, world.rank() + 1, type);
      world.group().all_reduce(value, op);
      return value.item<double>();
    };
    double product = 1;
    int any = 0, all = 7, odd = 0;
    for (int r = 1; r <= n; ++r) {
      product *= r;
      any |= r;
      all &= r;
      odd ^= r;
    }
    EXPECT_EQ(reduced(ReduceOp::mean, at::kFloat), (n + 1) / 2.0);
    EXPECT_EQ(reduced(ReduceOp::product, at::kLong), product);
    EXPECT_EQ(reduced(ReduceOp::min, at::kShort), 1);
    EXPECT_EQ(reduced(ReduceOp::max, at::kBFloat16), n);
    EXPECT_EQ(reduced(ReduceOp::bit_or, at::kInt), any);
    EXPECT_EQ(reduced(ReduceOp::bit_and, at::kInt), all);
    EXPECT_EQ(reduced(ReduceOp::bit_xor, at::kInt), odd);
  });
}

TEST_P(GroupOfRanks, TakesViewsScalarsAndEmptyTensors) {
  run_in_worlds(GetParam(), [](const World& world) {
    const auto base = torch::zeros({4, 6});
    const auto view = base.t().slice(0, 0, 6, 2);
    view.fill_(world.rank() + 1);
    world.group().all_reduce(view);
    const double sum = world.size() * (world.size() + 1) / 2.0;
    EXPECT_EQ(view.sum().item<double>(), sum * 12);
    EXPECT_EQ(base.sum().item<double>(), sum * 12);
    const auto empty = torch::zeros({0, 3});
    world.group().all_reduce(empty);
    EXPECT_EQ(
        world.group().all_gather(empty).size(),
        static_cast<std::size_t>(world.size()));
  });
}

TEST_P(GroupOfRanks, GathersUnevenShapes) {
  run_in_worlds(GetParam(), [](const World& world) {
    const std::vector<std::int64_t> shape(
        static_cast<std::size_t>(world.rank() % 3), world.rank() + 1);
    const auto parts =
        world.group().all_gather_uneven(torch::full(shape, world.rank()));
    for (int r = 0; r < world.size(); ++r) {
      const auto& part = parts[static_cast<std::size_t>(r)];
      EXPECT_EQ(part.dim(), r % 3);
      EXPECT_TRUE(torch::equal(part, torch::full_like(part, r)));
    }
  });
}

TEST_P(GroupOfRanks, ScattersAndCollects) {
  run_in_worlds(GetParam(), [](const World& world) {
    const int n = world.size();
    const int root = n - 1;
    std::vector<at::Tensor> parts;
    for (int r = 0; r < n; ++r) parts.push_back(torch::full({2}, r * 10));
    const auto output = torch::zeros({2}, at::kLong);
    world.group().scatter(output, parts, root);
    EXPECT_EQ(output[0].item<int>(), world.rank() * 10);

    const auto gathered = world.group().gather(output, root);
    EXPECT_EQ(
        gathered.size(),
        world.rank() == root ? static_cast<std::size_t>(n) : 0u);

    const auto mine = world.group().reduce_scatter(torch::arange(2 * n));
    EXPECT_TRUE(torch::equal(
        mine, torch::arange(2 * n).narrow(0, 2 * world.rank(), 2) * n));

    std::vector<at::Tensor> uneven;
    for (int r = 0; r < n; ++r)
      uneven.push_back(torch::full({r + 1}, world.rank()));
    const auto received = world.group().all_to_all(uneven);
    for (int r = 0; r < n; ++r) {
      EXPECT_TRUE(torch::equal(
          received[static_cast<std::size_t>(r)],
          torch::full({world.rank() + 1}, r)));
    }
  });
}

TEST_P(GroupOfRanks, MovesBytesAndObjects) {
  run_in_worlds(GetParam(), [](const World& world) {
    const auto all =
        world.group().all_gather_bytes(std::string(world.rank() * 5, 'x'));
    for (int r = 0; r < world.size(); ++r) {
      EXPECT_EQ(all[static_cast<std::size_t>(r)], std::string(r * 5, 'x'));
    }
    const nlohmann::json object{{"rank", world.rank()}};
    EXPECT_EQ(broadcast_object(object, world.group()).at("rank"), 0);
    EXPECT_EQ(world.group().broadcast_bytes("", 0), "");
    std::vector<std::string> strings;
    for (int r = 0; r < world.size(); ++r) strings.push_back(std::to_string(r));
    EXPECT_EQ(
        world.group().scatter_bytes(strings, 0), std::to_string(world.rank()));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GroupOfRanks, ::testing::Values(1, 2, 3, 4));

TEST(Group, ReducesOnOneRankOnly) {
  run_in_worlds(3, [](const World& world) {
    const auto value = torch::full({2}, world.rank() + 1);
    world.group().reduce(value, 1);
    EXPECT_EQ(value[0].item<int>(), world.rank() == 1 ? 6 : world.rank() + 1);
  });
}

TEST(Group, WaitsAtBarriersAndNamesMissingRanks) {
  std::string seen;
  std::atomic<bool> has_failed = false;
  run_in_worlds(3, [&](const World& world) {
    world.group().barrier();
    world.group().monitored_barrier(std::chrono::seconds(10));
    if (world.rank() == 0) {
      try {
        world.group().monitored_barrier(std::chrono::milliseconds(300));
      } catch (const DistributedError& error) {
        seen = error.what();
      }
      has_failed = true;
      has_failed.notify_all();
    } else {
      has_failed.wait(false);
    }
  });
  EXPECT_THAT(seen, ::testing::HasSubstr("1"));
  EXPECT_THAT(seen, ::testing::HasSubstr("2"));
}

TEST(Group, SendsBetweenTwoRanksWithTags) {
  run_in_worlds(2, [](const World& world) {
    if (world.rank() == 0) {
      world.group().send(torch::full({2}, 1.0), 1, 7);
      world.group().send(torch::full({2}, 2.0), 1, 8);
    } else {
      const auto second = torch::zeros({2}), first = torch::zeros({2});
      world.group().recv(first, 0, 7);
      world.group().recv(second, 0, 8);
      EXPECT_EQ(first[0].item<double>(), 1);
      EXPECT_EQ(second[0].item<double>(), 2);
    }
  });
}

TEST(Group, MakesSeparateGroupsOfTheSameRanks) {
  run_in_worlds(3, [](const World& world) {
    if (world.rank() == 1) return;
    const Group first = world.new_group({2, 0});
    const Group second = world.new_group({2, 0});
    EXPECT_EQ(first.rank(), world.rank() == 2 ? 0 : 1);
    const auto value = torch::ones({});
    first.all_reduce(value);
    second.all_reduce(value);
    EXPECT_EQ(value.item<double>(), 4);
  });
}

TEST(Group, RefusesWhatCannotBeHonoured) {
  run_in_worlds(2, [](const World& world) {
    expect_error<ConfigError>(
        [&] {
          world.group().all_reduce(torch::ones({2}, at::kLong), ReduceOp::mean);
        },
        "mean");
    expect_error<ConfigError>(
        [&] { world.group().broadcast(torch::ones({2}), 2); }, "2");
    expect_error<ConfigError>(
        [&] {
          static_cast<void>(world.group().reduce_scatter(torch::ones({3})));
        },
        "3");
    expect_error<ConfigError>(
        [&] { static_cast<void>(world.new_group({1 - world.rank()})); },
        "does not belong");
    // Nothing was sent, so the group still works.
    world.group().barrier();
  });
}

TEST(Group, ShowsHowRanksDisagreeInDebugMode) {
  const auto disagree = [] {
    run_on_ranks(2, [](WorldOptions options) {
      options.debug = true;
      const World world(options);
      world.group().all_reduce(torch::ones({world.rank() + 2}));
    });
  };
  expect_error<DistributedError>(disagree, "all_reduce");
}

TEST(Group, NamesThePeerThatIsGone) {
  std::string seen;
  run_on_ranks(2, [&](const WorldOptions& options) {
    const World world(options);
    if (world.rank() == 1) return;
    try {
      world.group().all_reduce(torch::ones({2}));
    } catch (const DistributedError& error) {
      seen = error.what();
    }
  });
  EXPECT_THAT(
      seen,
      ::testing::AllOf(
          ::testing::HasSubstr("all_reduce"), ::testing::HasSubstr("rank 1")));
}

TEST(Group, NamesThePeerThatStaysSilent) {
  std::string seen;
  std::atomic<bool> has_failed = false;
  run_on_ranks(2, [&](WorldOptions options) {
    options.timeout = std::chrono::milliseconds(500);
    const World world(options);
    if (world.rank() == 1) {
      has_failed.wait(false);
      return;
    }
    try {
      world.group().all_reduce(torch::ones({2}));
    } catch (const DistributedError& error) {
      seen = error.what();
    }
    has_failed = true;
    has_failed.notify_all();
  });
  EXPECT_THAT(seen, ::testing::HasSubstr("rank 1"));
  // The most common cause, and what to do about it.
  EXPECT_THAT(
      seen,
      ::testing::AllOf(
          ::testing::HasSubstr("even_batches"),
          ::testing::HasSubstr("join_uneven_inputs()")));
}

}  // namespace group_test
}  // namespace accelerate
