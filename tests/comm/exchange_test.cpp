#include "comm/transport/exchange.h"

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate::detail {
namespace exchange_test {

using testing::expect_error;
using testing::run_in_worlds;

TEST(Exchange, PutsWhatOthersSendWhereItBelongs) {
  run_in_worlds(3, [](const World& world) {
    const int mine = world.rank();
    for (int round = 0; round < 3; ++round) {
      // Rows of unequal number, of each rank, in one tensor.
      const at::Tensor all = at::zeros({6, 4}, at::kLong);
      const auto rows = [&](int rank) {
        return all.narrow(0, rank * (rank + 1) / 2, rank + 1);
      };
      rows(mine).fill_(10 * round + mine);
      Exchange exchange(world.group(), "a test");
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == mine) continue;
        exchange.receive(rows(peer), peer, 7);
        exchange.send(rows(mine), peer, 7);
      }
      exchange.wait();
      const at::Tensor expected =
          at::tensor({0, 1, 1, 2, 2, 2}, at::kLong) + 10 * round;
      EXPECT_TRUE(at::equal(all, expected.view({6, 1}).expand({6, 4})));
    }
  });
}

TEST(Exchange, KeepsMessagesOfTagsApart) {
  run_in_worlds(2, [](const World& world) {
    const int peer = 1 - world.rank();
    const at::Tensor first = at::empty({1000}, at::kBFloat16);
    const at::Tensor second = at::empty({2}, at::kBool);
    Exchange exchange(world.group(), "a test");
    exchange.receive(second, peer, 2);
    exchange.receive(first, peer, 1);
    exchange.send(at::full({1000}, peer, at::kBFloat16), peer, 1);
    exchange.send(at::tensor({1, 0}).to(at::kBool), peer, 2);
    exchange.wait();
    EXPECT_TRUE(at::all(first == world.rank()).item<bool>());
    EXPECT_TRUE(at::equal(second, at::tensor({1, 0}).to(at::kBool)));
  });
}

TEST(Exchange, SendsNothingOfNothing) {
  run_in_worlds(2, [](const World& world) {
    Exchange exchange(world.group(), "a test");
    exchange.send(at::empty({0, 3}), 1 - world.rank(), 1);
    exchange.receive(at::empty({0, 3}), 1 - world.rank(), 1);
    exchange.wait();
  });
}

TEST(Exchange, NamesThePeerThatIsGone) {
  expect_error<DistributedError>(
      [] {
        run_in_worlds(2, [](const World& world) {
          if (world.rank() == 1) return;
          Exchange exchange(world.group(), "fetching what is promised");
          exchange.receive(at::empty({5}), 1, 1);
          exchange.wait();
        });
      },
      "fetching what is promised");
}

}  // namespace exchange_test
}  // namespace accelerate::detail
