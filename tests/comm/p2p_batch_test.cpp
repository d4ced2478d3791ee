#include "comm/group/p2p_batch.h"

#include <accelerate/error.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate::detail {
namespace p2p_batch_test {

using testing::expect_error;
using testing::run_in_worlds;

TEST(P2PBatch, ReceivesIntoSlicesOfOneTensor) {
  run_in_worlds(3, [](const World& world) {
    const int mine = world.rank();
    for (int round = 0; round < 3; ++round) {
      // One tensor with a different number of rows from each rank.
      const at::Tensor all = at::zeros({6, 4}, at::kLong);
      const auto rows = [&](int rank) {
        return all.narrow(0, rank * (rank + 1) / 2, rank + 1);
      };
      rows(mine).fill_(10 * round + mine);
      P2PBatch batch(world.group(), "a test");
      for (int peer = 0; peer < 3; ++peer) {
        if (peer == mine) continue;
        batch.receive(rows(peer), peer, 7);
        batch.send(rows(mine), peer, 7);
      }
      batch.wait();
      const at::Tensor expected =
          at::tensor({0, 1, 1, 2, 2, 2}, at::kLong) + 10 * round;
      EXPECT_TRUE(at::equal(all, expected.view({6, 1}).expand({6, 4})));
    }
  });
}

TEST(P2PBatch, MatchesMessagesByTag) {
  run_in_worlds(2, [](const World& world) {
    const int peer = 1 - world.rank();
    const at::Tensor first = at::empty({1000}, at::kBFloat16);
    const at::Tensor second = at::empty({2}, at::kBool);
    P2PBatch batch(world.group(), "a test");
    batch.receive(second, peer, 2);
    batch.receive(first, peer, 1);
    batch.send(at::full({1000}, peer, at::kBFloat16), peer, 1);
    batch.send(at::tensor({1, 0}).to(at::kBool), peer, 2);
    batch.wait();
    EXPECT_TRUE(at::all(first == world.rank()).item<bool>());
    EXPECT_TRUE(at::equal(second, at::tensor({1, 0}).to(at::kBool)));
  });
}

TEST(P2PBatch, SkipsEmptyTensors) {
  run_in_worlds(2, [](const World& world) {
    P2PBatch batch(world.group(), "a test");
    batch.send(at::empty({0, 3}), 1 - world.rank(), 1);
    batch.receive(at::empty({0, 3}), 1 - world.rank(), 1);
    batch.wait();
  });
}

TEST(P2PBatch, NamesThePeerThatIsGone) {
  expect_error<DistributedError>(
      [] {
        run_in_worlds(2, [](const World& world) {
          if (world.rank() == 1) return;
          P2PBatch batch(world.group(), "fetching what is promised");
          batch.receive(at::empty({5}), 1, 1);
          batch.wait();
        });
      },
      "fetching what is promised");
}

}  // namespace p2p_batch_test
}  // namespace accelerate::detail
