#include <accelerate/accelerate.h>

#include <deque>
#include <list>
#include <set>
#include <unordered_set>

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

enum class Color : std::uint8_t { red, green, blue };

struct Point {
  std::int32_t x;
  std::int32_t y;
  bool operator==(const Point& other) const = default;
};

// A type that has no order and cannot be sent.
struct Socket {
  std::unique_ptr<int> handle;
};
struct Unordered {
  int number;
  bool operator==(const Unordered& other) const = default;
};
struct UnorderedHash {
  std::size_t operator()(const Unordered& key) const {
    return static_cast<std::size_t>(key.number);
  }
};

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

// Converts an object to bytes and back.
template <class T>
T sent(const T& object) {
  T result{};
  object_from_bytes(object_to_bytes(object), result);
  return result;
}

TEST(Objects, TravelInEveryStandardContainer) {
  using games::Color;
  using games::Point;
  const std::vector<bool> bits{true, false, true};
  EXPECT_EQ(sent(bits), bits);
  const std::array<double, 3> fixed{1.5, -2, 0};
  EXPECT_EQ(sent(fixed), fixed);
  const std::array<std::string, 2> names{"a", ""};
  EXPECT_EQ(sent(names), names);
  const std::deque<Color> colors{Color::blue, Color::red};
  EXPECT_EQ(sent(colors), colors);
  const std::list<Point> points{{1, 2}, {-3, 4}};
  EXPECT_EQ(sent(points), points);
  const std::set<std::string> words{"x", "y"};
  EXPECT_EQ(sent(words), words);
  const std::multiset<int> repeated{1, 1, 2};
  EXPECT_EQ(sent(repeated), repeated);
  const std::unordered_set<int> unordered{5, 3, 9};
  EXPECT_EQ(sent(unordered), unordered);
  const std::map<int, std::vector<std::string>> lists{{-1, {"p"}}, {7, {}}};
  EXPECT_EQ(sent(lists), lists);
  const std::unordered_map<std::string, std::pair<int, double>> scores{
      {"b", {1, 0.5}}, {"a", {2, 0.25}}};
  EXPECT_EQ(sent(scores), scores);
  const std::tuple<int, std::string, std::optional<Color>> mixed{
      4, "four", Color::green};
  EXPECT_EQ(sent(mixed), mixed);
  const std::tuple<> nothing;
  EXPECT_EQ(sent(nothing), nothing);
  const std::optional<std::string> absent;
  EXPECT_EQ(sent(absent), absent);
  // An optional that holds an empty optional is not empty itself.
  const std::optional<std::optional<int>> holds_absent{std::optional<int>()};
  EXPECT_TRUE(sent(holds_absent).has_value());
  EXPECT_FALSE(sent(holds_absent)->has_value());
  using Variant = std::variant<std::monostate, int, std::string, int>;
  for (const Variant& variant :
       {Variant(),
        Variant(std::in_place_index<1>, 8),
        Variant("text"),
        Variant(std::in_place_index<3>, 8)}) {
    EXPECT_EQ(sent(variant), variant);
  }
  const std::filesystem::path path = "a b/c";
  EXPECT_EQ(sent(path), path);
  const std::vector<Color> no_colors;
  EXPECT_EQ(sent(no_colors), no_colors);
}

TEST(Objects, TravelInTheOrderOfTheirKeys) {
  std::unordered_map<int, std::string> up, down;
  for (int i = 0; i < 50; ++i) {
    up[i] = std::to_string(i);
    down[49 - i] = std::to_string(49 - i);
  }
  EXPECT_EQ(object_to_bytes(up), object_to_bytes(down));
  const std::map<int, std::string> ordered(up.begin(), up.end());
  EXPECT_EQ(object_to_bytes(up), object_to_bytes(ordered));
}

TEST(Objects, KeepStateDicts) {
  const StateDict state{
      {"step", std::int64_t{3}},
      {"inner", StateDict{{"rates", std::vector<double>{0.5}}}},
      {"weight", torch::ones({2})}};
  const StateDict copy = sent(state);
  EXPECT_EQ(copy.values().size(), 3U);
  EXPECT_EQ(copy.get<std::int64_t>("step"), 3);
  EXPECT_EQ(
      copy.get<StateDict>("inner").get<std::vector<double>>("rates"),
      std::vector<double>{0.5});
  EXPECT_TRUE(torch::equal(copy.get<at::Tensor>("weight"), torch::ones({2})));
}

TEST(Objects, KeepTensorsOfEveryKind) {
  for (const at::ScalarType dtype :
       {at::kBool,
        at::kByte,
        at::kShort,
        at::kLong,
        at::kHalf,
        at::kBFloat16,
        at::kFloat,
        at::kDouble,
        at::kComplexFloat}) {
    const at::Tensor tensor = torch::arange(6).reshape({2, 3}).to(dtype);
    const at::Tensor copy = sent(tensor);
    EXPECT_EQ(copy.scalar_type(), dtype);
    EXPECT_TRUE(torch::equal(copy, tensor)) << dtype;
  }
  const at::Tensor matrix = torch::arange(6).reshape({2, 3});
  EXPECT_TRUE(torch::equal(sent(matrix.t()), matrix.t()));
  EXPECT_TRUE(sent(matrix.t()).is_contiguous());
  EXPECT_TRUE(
      torch::equal(sent(matrix.slice(1, 0, 3, 2)), matrix.slice(1, 0, 3, 2)));
  EXPECT_EQ(
      sent(torch::zeros({0, 4})).sizes(), (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(sent(torch::tensor(2.5)).item<double>(), 2.5);
  EXPECT_EQ(sent(torch::tensor(2.5)).dim(), 0);
  EXPECT_FALSE(sent(at::Tensor()).defined());
  const at::Tensor meta = sent(torch::empty({7, 1 << 20}, at::kMeta));
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.size(1), 1 << 20);
  const at::Tensor conjugate =
      torch::conj(torch::complex(torch::ones({2}), torch::ones({2})));
  EXPECT_TRUE(torch::equal(sent(conjugate), conjugate.resolve_conj()));
  const at::Tensor leaf = torch::ones({2}, torch::requires_grad());
  EXPECT_FALSE(sent(leaf).requires_grad());
}

TEST(Objects, RefuseTensorsWithoutPlainElements) {
  expect_error<ConfigError>(
      [] { object_to_bytes(torch::eye(2).to_sparse()); }, "sparse");
  expect_error<ConfigError>(
      [] {
        object_to_bytes(
            torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, at::kQInt8));
      },
      "quantized");
}

TEST(Objects, GatherTensorsOfDifferentShapes) {
  for (const int num_ranks : {1, 2, 4}) {
    run_in_worlds(num_ranks, [&](const World& world) {
      const int rank = world.rank();
      // Rank r has r tensors, of r + 1 dimensions each.
      std::vector<at::Tensor> mine;
      for (int i = 0; i < rank; ++i) {
        mine.push_back(torch::full(
            std::vector<std::int64_t>(static_cast<std::size_t>(rank + 1), 2),
            10 * rank + i,
            i % 2 == 0 ? at::kLong : at::kHalf));
      }
      const auto all = gather_object(mine, world.group());
      std::size_t next = 0;
      for (int from = 0; from < num_ranks; ++from) {
        for (int i = 0; i < from; ++i) {
          const at::Tensor& tensor = all.at(next++);
          EXPECT_EQ(tensor.dim(), from + 1);
          EXPECT_EQ(tensor.scalar_type(), i % 2 == 0 ? at::kLong : at::kHalf);
          EXPECT_EQ(tensor.max().item<double>(), 10 * from + i);
        }
      }
      EXPECT_EQ(all.size(), next);
    });
  }
}

TEST(Objects, GatherAndBroadcastListsAlike) {
  run_in_worlds(3, [](const World& world) {
    EXPECT_EQ(
        gather_object({world.rank() * 2}, world.group()),
        (std::vector<int>{0, 2, 4}));
    // The other ranks' lists, of different lengths, are ignored.
    const std::vector<std::string> mine(
        static_cast<std::size_t>(world.rank()), "x");
    EXPECT_EQ(
        broadcast_object_list(mine, world.group(), 2),
        (std::vector<std::string>{"x", "x"}));
    EXPECT_TRUE(broadcast_object_list(mine, world.group()).empty());
    const auto [name, tensor] = broadcast_object(
        std::tuple(
            std::to_string(world.rank()), torch::full({2}, world.rank())),
        world.group(),
        1);
    EXPECT_EQ(name, "1");
    EXPECT_TRUE(torch::equal(tensor, torch::ones({2}, at::kLong)));
  });
}

TEST(Objects, RefuseARankThatTheGroupLacks) {
  expect_error<ConfigError>(
      [] { static_cast<void>(broadcast_object(1, Group(), 3)); }, "rank 3");
}

TEST(Objects, AreRefusedByTheCompilerUnlessTheyCanTravel) {
  static_assert(Transferable<std::vector<at::Tensor>>);
  static_assert(Transferable<std::map<std::string, games::Episode>>);
  static_assert(!Transferable<const char*>);
  static_assert(!Transferable<std::string_view>);
  static_assert(!Transferable<std::vector<int*>>);
  static_assert(!Transferable<games::Socket>);
  static_assert(!Transferable<std::map<int, games::Socket>>);
  static_assert(!Transferable<std::optional<int*>>);
  static_assert(!Transferable<
                std::unordered_set<games::Unordered, games::UnorderedHash>>);
  using Obstacle = decltype(detail::find_obstacle<
                            std::map<int, std::pair<int, games::Socket>>>());
  static_assert(std::is_same_v<Obstacle::type, games::Socket>);
}

TEST(Objects, RefuseTornBytesOfEveryKind) {
  const auto expect_torn = []<class T>(const T& object) {
    const std::string bytes = object_to_bytes(object);
    // Some prefixes of a list of numbers are lists, too.
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      T result{};
      try {
        object_from_bytes(std::string_view(bytes).substr(0, size), result);
      } catch (const DistributedError&) {
        continue;
      }
      ADD_FAILURE() << "accepted " << size << " of " << bytes.size();
    }
  };
  expect_torn(std::array<int, 3>{1, 2, 3});
  expect_torn(std::tuple(1, 2.0));
  expect_torn(std::optional(7));
  expect_torn(std::variant<int, double>(1.5));
  expect_torn(torch::ones({2, 3}));
  expect_torn(std::map<int, int>{{1, 2}, {3, 4}});
  std::variant<int, double> narrow;
  const std::variant<int, double, float> wide = 1.5F;
  expect_error<DistributedError>(
      [&] { object_from_bytes(object_to_bytes(wide), narrow); },
      "alternative 2 of a variant of 2");
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

TEST(DebugMode, RefusesRowsThatDifferOnlyIfAskedFor) {
  for (const bool debug : {false, true}) {
    testing::run_on_ranks(2, [&](WorldOptions options) {
      options.debug = debug;
      const World world(options);
      const auto rows = [&] {
        return gather(torch::zeros({world.rank() + 1, 2}), world.group())
            .size(0);
      };
      if (debug) {
        expect_error<DistributedError>([&] { rows(); }, "[2, 2]");
      } else {
        EXPECT_EQ(rows(), 3);
      }
    });
  }
}

}  // namespace objects_test
}  // namespace accelerate
