#include <fstream>
#include <optional>
#include <thread>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace world_test {

using testing::expect_error;

TEST(World, IsOneRankByItself) {
  const World world;
  EXPECT_EQ(world.size(), 1);
  EXPECT_EQ(world.rank(), 0);
  const auto value = torch::ones({2});
  world.group().all_reduce(value);
  EXPECT_EQ(value.sum().item<double>(), 2);
  EXPECT_EQ(world.group().all_gather_bytes("x"), std::vector<std::string>{"x"});
}

TEST(World, RefusesImpossibleRanks) {
  expect_error<ConfigError>(
      [] { World({.rank = 2, .size = 2}); }, "rank 2 of 2");
  expect_error<ConfigError>(
      [] { World({.rank = 0}); }, "must set both rank and size, or neither");
}

TEST(World, ConnectsThroughAFile) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "store";
  std::vector<std::thread> threads;
  std::vector<double> sums(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const World world(
          {.rank = rank, .size = 2, .store = Store::file(path, 2)});
      const auto value = torch::full({}, rank + 1.0);
      world.group().all_reduce(value);
      sums[static_cast<std::size_t>(rank)] = value.item<double>();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sums, (std::vector<double>{3, 3}));
}

TEST(Store, KeepsAnyBytesBehindItsPrefix) {
  const Store store = Store::in_memory();
  const Store inner = store.with_prefix("a");
  const std::string bytes("x\0y", 3);
  inner.set("key", bytes);
  EXPECT_EQ(inner.get("key"), bytes);
  EXPECT_FALSE(store.has("key"));
  EXPECT_EQ(inner.add("count", 2), 2);
  EXPECT_EQ(inner.add("count", 3), 5);
}

TEST(Store, ListensOnAFreePortAndRefusesATakenOne) {
  const Store server =
      Store::tcp("127.0.0.1", 0, true, std::chrono::seconds(5));
  EXPECT_GT(server.port(), 0);
  const Store client =
      Store::tcp("127.0.0.1", server.port(), false, std::chrono::seconds(5));
  client.set("a", "b");
  EXPECT_EQ(server.get("a"), "b");
  expect_error<ConfigError>(
      [&] {
        Store::tcp("127.0.0.1", server.port(), true, std::chrono::seconds(5));
      },
      "port");
}

TEST(World, IsOneOfSeveralOverTheSameStore) {
  testing::run_on_ranks(3, [](const WorldOptions& options) {
    const World first(options);
    for (int i = 0; i < 3; ++i) {
      const World next(options);
      const at::Tensor sum = at::ones({});
      next.group().all_reduce(sum);
      EXPECT_EQ(sum.item<float>(), 3);
    }
    const at::Tensor sum = at::ones({});
    first.group().all_reduce(sum);
    EXPECT_EQ(sum.item<float>(), 3);
  });
}

float sum_of_ones(const World& world) {
  const at::Tensor sum = at::ones({});
  world.group().all_reduce(sum);
  return sum.item<float>();
}

// Options of a rank whose store is served by rank 0 at a free port.
WorldOptions over_tcp(const WorldOptions& options, int port) {
  WorldOptions own = options;
  own.store.reset();
  own.port = port;
  return own;
}

int free_port() {
  return Store::tcp("127.0.0.1", 0, true, std::chrono::seconds(5)).port();
}

TEST(World, MayFollowAnotherThatRankZeroHasNotLeft) {
  const int port = free_port();
  testing::run_on_ranks(2, [port](const WorldOptions& options) {
    const WorldOptions own = over_tcp(options, port);
    std::optional<World> kept;
    for (int i = 0; i < 20; ++i) {
      const World world(own);
      EXPECT_EQ(sum_of_ones(world), 2);
      // Rank 1 makes its next world while rank 0 still holds this one.
      if (world.rank() == 0) kept = world;
    }
  });
}

TEST(World, MayExistTwiceOverAStoreOfRankZero) {
  const int port = free_port();
  testing::run_on_ranks(2, [port](const WorldOptions& options) {
    const WorldOptions own = over_tcp(options, port);
    std::optional<World> first(std::in_place, own);
    const World second(own);
    EXPECT_EQ(sum_of_ones(second), 2);
    EXPECT_EQ(sum_of_ones(*first), 2);
    // The first world's store outlives it.
    first.reset();
    EXPECT_EQ(sum_of_ones(second), 2);
    EXPECT_EQ(second.new_group({0, 1}).size(), 2);
    const World third(own);
    EXPECT_EQ(sum_of_ones(third), 2);
  });
}

TEST(World, MeetsAtTheAddressAndPortOfItsOptions) {
  const int port = free_port();
  testing::run_on_ranks(2, [port](const WorldOptions& options) {
    WorldOptions own = over_tcp(options, port);
    own.address = "localhost";
    const World world(own);
    EXPECT_EQ(sum_of_ones(world), 2);
    // The key with which rank 0 counts its worlds.
    EXPECT_TRUE(Store::tcp("127.0.0.1", port, false, std::chrono::seconds(5))
                    .has("worlds/0"));
  });
  const int unused = free_port();
  for (const std::string address : {"127.0.0.1", "127.0.0.2"}) {
    expect_error<DistributedError>(
        [&] {
          const World lost(
              {.rank = 1,
               .size = 2,
               .address = address,
               .port = unused,
               .timeout = std::chrono::milliseconds(50)});
        },
        "no process listens at " + address + ":" + std::to_string(unused));
  }
}

TEST(World, CanBeMadeAThousandTimes) {
  testing::run_on_ranks(2, [](const WorldOptions& options) {
    for (int i = 0; i < 1000; ++i) {
      const World world(options);
      ASSERT_EQ(sum_of_ones(world), 2);
    }
  });
}

TEST(World, NamesTheRankThatMadeFewer) {
  testing::run_on_ranks(2, [](const WorldOptions& options) {
    { const World first(options); }
    if (*options.rank == 1) return;
    WorldOptions own = options;
    own.timeout = std::chrono::milliseconds(300);
    expect_error<DistributedError>(
        [&] { const World second(own); },
        "rank 1 did not arrive within 0.3 s. This is World number 2 of rank 0, "
        "but rank 1 has made 1: all ranks must make the same number of Worlds");
  });
}

}  // namespace world_test
}  // namespace accelerate
