#include <accelerate/accelerate.h>
#include <nlohmann/json.hpp>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace games {

struct Episode {
  std::string map;
  std::vector<double> rewards;
};

std::string object_to_bytes(const Episode& episode) {
  return accelerate::object_to_bytes(std::pair(episode.map, episode.rewards));
}

void object_from_bytes(std::string_view bytes, Episode& episode) {
  std::pair<std::string, std::vector<double>> parts;
  accelerate::object_from_bytes(bytes, parts);
  episode = {std::move(parts.first), std::move(parts.second)};
}

}  // namespace games

namespace accelerate {
namespace objects_test {

using testing::expect_error;
using testing::run_in_worlds;

TEST(Objects, AreGatheredInRankOrder) {
  run_in_worlds(3, [](const World& world) {
    const int rank = world.rank();
    const auto strings = gather_object(
        std::vector<std::string>(
            static_cast<std::size_t>(rank), std::to_string(rank)),
        world.group());
    EXPECT_EQ(strings, (std::vector<std::string>{"1", "2", "2"}));
    EXPECT_EQ(
        gather_object(std::vector<int>{rank}, world.group()),
        (std::vector<int>{0, 1, 2}));
    const auto episodes = gather_object(
        std::vector<games::Episode>{
            {"map" + std::to_string(rank), {0.5 * rank, -1}}},
        world.group());
    ASSERT_EQ(episodes.size(), 3U);
    EXPECT_EQ(episodes[2].map, "map2");
    EXPECT_EQ(episodes[2].rewards, (std::vector<double>{1, -1}));
    const auto nested = gather_object(
        std::vector<std::pair<std::string, std::vector<std::string>>>{
            {"", {"a", ""}}},
        world.group());
    EXPECT_EQ(nested.size(), 3U);
    EXPECT_EQ(nested[1].second, (std::vector<std::string>{"a", ""}));
  });
}

TEST(Objects, AreBroadcastFromAnyRank) {
  run_in_worlds(2, [](const World& world) {
    const nlohmann::json json =
        world.rank() == 1 ? nlohmann::json{{"epoch", 3}} : nlohmann::json();
    EXPECT_EQ(
        broadcast_object(json, world.group(), 1),
        (nlohmann::json{{"epoch", 3}}));
    const games::Episode mine{world.rank() == 0 ? "start" : "", {}};
    EXPECT_EQ(broadcast_object(mine, world.group()).map, "start");
  });
}

TEST(Objects, RefuseBytesOfAnotherType) {
  int number = 0;
  expect_error<DistributedError>([&] { object_from_bytes("abc", number); }, "");
  std::vector<std::string> list;
  expect_error<DistributedError>([&] { object_from_bytes("abc", list); }, "");
}

TEST(DebugMode, NamesRanksAndShapesOfADifference) {
  const auto gather_different = [] {
    testing::run_on_ranks(2, [](const WorldOptions& options) {
      WorldOptions debugging = options;
      debugging.debug = true;
      const World world(debugging);
      gather(torch::zeros({2, world.rank() + 1}), world.group());
    });
  };
  expect_error<DistributedError>(gather_different, "rank 1");
  expect_error<DistributedError>(gather_different, "[2, 2]");
}

}  // namespace objects_test
}  // namespace accelerate
