#include "comm/group/begun_exchange.h"

#include <accelerate/error.h>

#include "comm/group/group_impl.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate::detail {
namespace begun_exchange_test {

using testing::expect_error;
using testing::run_in_worlds;

TEST(BegunExchange, ReceivesIntoSlicesOfOneTensor) {
  run_in_worlds(3, [](const World& world) {
    const int mine = world.rank();
    for (int round = 0; round < 3; ++round) {
      // One tensor with a different number of rows from each rank.
      const at::Tensor all = at::zeros({6, 4}, at::kLong);
      const auto rows = [&](int rank) {
        return all.narrow(0, rank * (rank + 1) / 2, rank + 1);
      };
      rows(mine).fill_(10 * round + mine);
      std::vector<PeerMessage> sends, receives;
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == mine) continue;
        receives.push_back({rows(peer), peer, 7});
        sends.push_back({rows(mine), peer, 7});
      }
      BegunExchange::messages(world.group(), "a test", sends, receives).wait();
      const at::Tensor expected =
          at::tensor({0, 1, 1, 2, 2, 2}, at::kLong) + 10 * round;
      EXPECT_TRUE(at::equal(all, expected.view({6, 1}).expand({6, 4})));
    }
  });
}

TEST(BegunExchange, MatchesMessagesByTag) {
  run_in_worlds(2, [](const World& world) {
    const int peer = 1 - world.rank();
    const at::Tensor first = at::empty({1000}, at::kBFloat16);
    const at::Tensor second = at::empty({2}, at::kBool);
    BegunExchange begun = BegunExchange::messages(
        world.group(),
        "a test",
        {{at::full({1000}, peer, at::kBFloat16), peer, 1},
         {at::tensor({1, 0}).to(at::kBool), peer, 2}},
        {{second, peer, 2}, {first, peer, 1}});
    begun.wait();
    EXPECT_TRUE(at::all(first == world.rank()).item<bool>());
    EXPECT_TRUE(at::equal(second, at::tensor({1, 0}).to(at::kBool)));
  });
}

// Rank 2 has nothing to exchange, and the others go ahead of it.
TEST(BegunExchange, MatchesExchangesByTheirOrder) {
  run_in_worlds(3, [](const World& world) {
    const int mine = world.rank(), peer = 1 - mine;
    const auto value = [](int round, int part, int from) {
      return at::full({1 + part}, 100 * round + 10 * part + from, at::kLong);
    };
    std::vector<BegunExchange> begun;
    std::vector<at::Tensor> received;
    for (int round = 0; round < 5; ++round) {
      std::vector<PeerMessage> sends, receives;
      for (int part = 0; part < 3 && mine < 2; ++part) {
        received.push_back(at::empty({1 + part}, at::kLong));
        receives.push_back({received.back(), peer});
        sends.push_back({value(round, part, mine), peer});
      }
      begun.push_back(
          BegunExchange::exchange(world.group(), "a test", sends, receives));
    }
    // The order of waits does not matter.
    for (auto each = begun.rbegin(); each != begun.rend(); ++each) each->wait();
    for (std::size_t i = 0; i < received.size(); ++i) {
      const int number = static_cast<int>(i);
      EXPECT_TRUE(at::equal(received[i], value(number / 3, number % 3, peer)));
    }
  });
}

TEST(BegunExchange, SendsAfterItHasReceived) {
  run_in_worlds(2, [](const World& world) {
    const at::Tensor received = at::empty({5});
    const at::Tensor sent = at::full({5}, world.rank() + 1.0);
    const int peer = 1 - world.rank();
    BegunExchange begun = BegunExchange::exchange(
        world.group(), "a test", {{sent, peer}}, {{received, peer}});
    begun.wait_for_receives();
    EXPECT_TRUE(at::equal(received, at::full({5}, peer + 1.0)));
    begun.wait();
    begun.wait();
  });
}

TEST(BegunExchange, SkipsEmptyTensors) {
  run_in_worlds(2, [](const World& world) {
    const at::Tensor empty = at::empty({0, 3});
    const int peer = 1 - world.rank();
    BegunExchange::messages(
        world.group(), "a test", {{empty, peer, 1}}, {{empty, peer, 1}})
        .wait();
    EXPECT_EQ(world.group().impl()->unfinished.count(), 0U);
  });
}

TEST(BegunExchange, KeepsWhatIsNotWaitedFor) {
  run_in_worlds(2, [](const World& world) {
    const UnfinishedWorks& unfinished = world.group().impl()->unfinished;
    if (world.rank() == 0) {
      const at::Tensor received = at::empty({3});
      {
        const BegunExchange dropped = BegunExchange::messages(
            world.group(), "a test", {}, {{received, 1, 1}});
      }
      EXPECT_EQ(unfinished.count(), 1U);
      world.group().barrier();
      return;
    }
    world.group().barrier();
    world.group().send(at::ones({3}), 0, 1);
  });
}

TEST(BegunExchange, NamesThePeerThatIsGone) {
  expect_error<DistributedError>(
      [] {
        run_in_worlds(2, [](const World& world) {
          if (world.rank() == 1) return;
          BegunExchange::messages(
              world.group(),
              "fetching what is promised",
              {},
              {{at::empty({5}), 1, 1}})
              .wait();
        });
      },
      "fetching what is promised");
}

}  // namespace begun_exchange_test
}  // namespace accelerate::detail
