#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <accelerate/error.h>

#include "comm/group/begun_exchange.h"
#include "comm/group/group_impl.h"
#include "comm/transport/hierarchy/islands.h"
#include "comm/transport/hierarchy/serial_queue.h"
#include "support/expect_error.h"
#include "support/memory_worlds.h"

namespace accelerate::detail {
namespace hierarchy_test {

using std::chrono::milliseconds;
using testing::expect_error;
using testing::run_on_machines;

TEST(Islands, KeepTheOrderOfTheirFirstRanks) {
  const Islands islands({"b", "a", "b", "c", "a", "b"});
  EXPECT_EQ(islands.count(), 3U);
  EXPECT_EQ(islands.members(0), (std::vector<int>{0, 2, 5}));
  EXPECT_EQ(islands.members(1), (std::vector<int>{1, 4}));
  EXPECT_EQ(islands.members(2), (std::vector<int>{3}));
  EXPECT_EQ(islands.island_of(4), 1U);
  EXPECT_EQ(islands.local_rank(5), 2);
  EXPECT_EQ(islands.num_lanes(), 1U);
  EXPECT_EQ(Islands({"a", "b", "b", "a"}).num_lanes(), 2U);
}

TEST(SerialQueue, RunsTasksInTheOrderInWhichTheyCame) {
  std::vector<int> order;
  const auto queue =
      std::make_shared<SerialQueue>([](const std::exception&) {});
  std::vector<Work> works;
  for (int i = 0; i < 4; ++i)
    works.push_back(queue->push([&order, i] { order.push_back(i); }, {}));
  EXPECT_TRUE(order.empty());
  works[2]->wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(works[0]->isCompleted());
  EXPECT_FALSE(works[3]->isCompleted());
  works[3]->getFuture()->wait();
  EXPECT_EQ(order.size(), 4U);
}

TEST(SerialQueue, FailsEverythingAfterAFailure) {
  std::vector<std::string> failures;
  const auto queue =
      std::make_shared<SerialQueue>([&](const std::exception& error) {
        failures.emplace_back(error.what());
      });
  const Work good = queue->push([] {}, {});
  const Work bad =
      queue->push([] { throw std::runtime_error("the line is cut"); }, {});
  bool has_run = false;
  const Work later = queue->push([&] { has_run = true; }, {});
  expect_error<std::runtime_error>([&] { later->wait(); }, "the line is cut");
  expect_error<std::runtime_error>([&] { bad->wait(); }, "the line is cut");
  good->wait();
  EXPECT_FALSE(has_run);
  EXPECT_FALSE(later->isSuccess());
  EXPECT_TRUE(good->isSuccess());
  expect_error<std::runtime_error>(
      [&] { queue->push([] {}, {}); }, "the line is cut");
  EXPECT_EQ(failures, (std::vector<std::string>{"the line is cut"}));
}

TEST(SerialQueue, FailsWhatIsLeftWhenItCloses) {
  const auto queue =
      std::make_shared<SerialQueue>([](const std::exception&) {});
  const Work work = queue->push([] {}, {});
  queue->close();
  expect_error<std::runtime_error>(
      [&] { work->wait(); }, "the connection was closed");
}

std::string transport_of(const Group& group) {
  return group.impl()->connection->facts().name;
}

class Machines : public ::testing::TestWithParam<std::vector<int>> {
 protected:
  // The sum of `value(rank)` over all ranks.
  template <class Value>
  static at::Tensor sum_over(int size, Value&& value) {
    at::Tensor sum = value(0);
    for (int rank = 1; rank < size; ++rank) sum = sum + value(rank);
    return sum;
  }
};

// Counts that fit in a greeting, in one lane, in one lane with two ranks' rows
// but not with three, and in all lanes; some have uneven tails.
const std::vector<std::int64_t> kCounts{0, 1, 512, 513, 12'001, 20'001, 70'003};

// A child that drops the connection must not wait for its parent's threads.
TEST(HierarchicalConnection, IsLeftAloneByAForkedChild) {
  run_on_machines({2, 1}, [](const World& world) {
    // Starts a helper thread.
    world.group()
        .impl()
        ->connection->all_reduce(torch::ones({100'000}), ReduceOp::sum)
        ->getFuture()
        ->wait();
    world.group().barrier();
    if (world.rank() == 0) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        const_cast<std::shared_ptr<Connection>&>(
            world.group().impl()->connection)
            .reset();
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    const at::Tensor one = torch::ones({1});
    world.group().all_reduce(one);
    EXPECT_EQ(one.item<float>(), 3);
    world.group().barrier();
  });
}

TEST_P(Machines, ReduceToTheSumOfAll) {
  run_on_machines(GetParam(), [](const World& world) {
    const Group& group = world.group();
    const int size = group.size();
    EXPECT_EQ(transport_of(group), "hierarchy");
    for (const std::int64_t count : kCounts) {
      const auto value = [count](int rank) {
        return torch::arange(count) * (rank + 2) + rank;
      };
      const at::Tensor expected = sum_over(size, value);
      const at::Tensor all = value(group.rank());
      group.all_reduce(all);
      EXPECT_TRUE(torch::equal(all, expected)) << count;
      for (int root = 0; root < size; ++root) {
        const at::Tensor one = value(group.rank());
        group.reduce(one, root);
        EXPECT_TRUE(torch::equal(
            one, group.rank() == root ? expected : value(group.rank())));
      }
      const at::Tensor shard =
          group.reduce_scatter(value(group.rank()).repeat({size}));
      EXPECT_TRUE(torch::equal(shard, expected));
      // Each rank gets a different row, and the input keeps its values.
      const at::Tensor rows = value(group.rank()).unsqueeze(0) *
          torch::arange(1, size + 1).unsqueeze(1);
      const at::Tensor kept = rows.clone();
      EXPECT_TRUE(torch::equal(
          group.reduce_scatter(rows),
          (expected * (group.rank() + 1)).unsqueeze(0)));
      EXPECT_TRUE(torch::equal(rows, kept));
    }
  });
}

TEST_P(Machines, MoveWhatIsAskedFor) {
  run_on_machines(GetParam(), [](const World& world) {
    const Group& group = world.group();
    const int size = group.size();
    const int me = group.rank();
    for (const std::int64_t count : kCounts) {
      const auto value = [count](int rank, int salt = 0) {
        return torch::arange(count) + 1000 * rank + salt;
      };
      for (int root = 0; root < size; ++root) {
        const at::Tensor sent = value(me);
        group.broadcast(sent, root);
        EXPECT_TRUE(torch::equal(sent, value(root)));

        const auto gathered = group.gather(value(me), root);
        EXPECT_EQ(gathered.size(), me == root ? size : 0);
        for (std::size_t i = 0; i < gathered.size(); ++i)
          EXPECT_TRUE(torch::equal(gathered[i], value(static_cast<int>(i))));

        std::vector<at::Tensor> parts;
        for (int peer = 0; me == root && peer < size; ++peer)
          parts.push_back(value(root, peer));
        const at::Tensor part = torch::empty({count}, at::kLong);
        group.scatter(part, parts, root);
        EXPECT_TRUE(torch::equal(part, value(root, me)));
      }
      const auto all = group.all_gather(value(me));
      for (int peer = 0; peer < size; ++peer) {
        EXPECT_TRUE(
            torch::equal(all[static_cast<std::size_t>(peer)], value(peer)));
      }
      std::vector<at::Tensor> parts;
      for (int peer = 0; peer < size; ++peer)
        parts.push_back(value(me, peer).repeat({peer}));
      const auto received = group.all_to_all(parts);
      for (int peer = 0; peer < size; ++peer) {
        EXPECT_TRUE(torch::equal(
            received[static_cast<std::size_t>(peer)],
            value(peer, me).repeat({me})));
      }
      group.barrier();
    }
    group.monitored_barrier(std::chrono::seconds(30));
  });
}

TEST_P(Machines, SendMessagesToAnyRank) {
  run_on_machines(GetParam(), [](const World& world) {
    const Group& group = world.group();
    std::vector<PeerMessage> sends, receives;
    for (int peer = 0; peer < group.size(); ++peer) {
      if (peer == group.rank()) continue;
      for (int tag = 0; tag < 3; ++tag) {
        sends.push_back(
            {torch::full({5000 + tag}, 10 * group.rank() + tag), peer, tag});
      }
    }
    std::map<std::pair<int, int>, at::Tensor> received;
    for (int tag = 2; tag >= 0; --tag) {
      for (int peer = 0; peer < group.size(); ++peer) {
        if (peer == group.rank()) continue;
        const auto entry = received.emplace(
            std::pair(peer, tag), torch::empty({5000 + tag}, at::kLong));
        receives.push_back({entry.first->second, peer, tag});
      }
    }
    BegunExchange::messages(group, "exchange", sends, receives).wait();
    for (const auto& [key, tensor] : received) {
      EXPECT_TRUE(torch::equal(
          tensor, torch::full_like(tensor, 10 * key.first + key.second)));
    }
  });
}

// Values whose sums depend on the order of addition.
at::Tensor rounding_values(int rank, std::int64_t count, at::ScalarType dtype) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(77 + rank));
  return (torch::randn({count}, generator, torch::dtype(torch::kDouble)) *
          std::pow(4.0, rank % 3))
      .to(dtype);
}

TEST_P(Machines, AddIslandsInOrderAndAlike) {
  const std::vector<int>& sizes = GetParam();
  run_on_machines(sizes, [&sizes](const World& world) {
    for (const at::ScalarType dtype :
         {at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e5m2}) {
      for (const std::int64_t count : {300, 200'001}) {
        at::Tensor expected;
        int first = 0;
        for (const int size : sizes) {
          at::Tensor sum;
          for (int rank = first; rank < first + size; ++rank) {
            const at::Tensor next =
                rounding_values(rank, count, dtype).to(at::kFloat);
            sum = sum.defined() ? sum + next : next;
          }
          first += size;
          // An island's sum travels in the tensor's dtype.
          sum = sum.to(dtype).to(at::kFloat);
          expected = expected.defined() ? expected + sum : sum;
        }
        const at::Tensor values = rounding_values(world.rank(), count, dtype);
        world.group().all_reduce(values);
        EXPECT_TRUE(torch::equal(
            values.view(at::kByte), expected.to(dtype).view(at::kByte)))
            << dtype << " " << count;
      }
    }
  });
}

TEST_P(Machines, CompleteFuturesInTheOrderOfCalls) {
  run_on_machines(GetParam(), [](const World& world) {
    Connection& connection = *world.group().impl()->connection;
    std::vector<at::Tensor> tensors;
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
    for (int i = 0; i < 6; ++i) {
      tensors.push_back(torch::full({1000 * (i + 1)}, world.rank() + i));
      futures.push_back(
          connection.all_reduce(tensors.back(), ReduceOp::sum)->getFuture());
    }
    for (auto future = futures.rbegin(); future != futures.rend(); ++future)
      (*future)->wait();
    const int size = world.size();
    for (int i = 0; i < 6; ++i) {
      const at::Tensor& value = tensors[static_cast<std::size_t>(i)];
      EXPECT_TRUE(torch::equal(
          value, torch::full_like(value, size * (size - 1) / 2 + size * i)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    Machines,
    ::testing::Values(
        std::vector<int>{2, 2},
        std::vector<int>{3, 1},
        std::vector<int>{1, 2},
        std::vector<int>{2, 3},
        std::vector<int>{2, 1, 2},
        std::vector<int>{2, 2, 2, 1, 1}));

TEST(Hierarchy, IsChosenForGroupsThatNeedIt) {
  std::mutex mutex;
  std::map<std::string, int> found;
  run_on_machines({2, 2}, [&](const World& world) {
    const int node = world.rank() / 2;
    const Group inside = world.new_group({2 * node, 2 * node + 1});
    const int place = world.rank() % 2;
    const Group across = world.new_group({place, place + 2});
    // Ranks of one machine are not consecutive.
    const Group mixed = world.new_group({2, 0, 3, 1});
    for (const Group& group : {world.group(), inside, across, mixed}) {
      const at::Tensor value = torch::ones({3});
      group.all_reduce(value);
      EXPECT_EQ(value.sum().item<double>(), 3 * group.size());
      const std::lock_guard lock(mutex);
      ++found[transport_of(group)];
    }
    const auto all = mixed.all_gather(torch::full({2}, world.rank()));
    EXPECT_EQ(all[0][0].item<int>(), 2);
    EXPECT_EQ(all[1][0].item<int>(), 0);
    EXPECT_EQ(all[3][1].item<int>(), 1);
  });
  EXPECT_THAT(
      found,
      ::testing::ElementsAre(
          ::testing::Pair("gloo", 4),
          ::testing::Pair("hierarchy", 8),
          ::testing::Pair("shared_memory", 4)));
}

// The errors of the ranks of two machines with two ranks each, when the last
// rank does `other`.
std::vector<std::string> failures_beside(
    const std::function<void(const World&)>& other) {
  std::vector<std::string> texts(4);
  run_on_machines(
      {2, 2},
      [&](const World& world) {
        try {
          if (world.rank() == 3) {
            other(world);
          } else {
            world.group().all_reduce(torch::ones({4}));
          }
        } catch (const DistributedError& error) {
          texts[static_cast<std::size_t>(world.rank())] = error.what();
        }
      },
      milliseconds(3000));
  return texts;
}

TEST(Hierarchy, SaysHowCallsDisagreeInsideOfAMachine) {
  const auto texts = failures_beside([](const World& world) {
    world.group().all_reduce(torch::ones({5}, at::kDouble));
  });
  using ::testing::AllOf, ::testing::HasSubstr;
  // The board's list of all calls replaces the transport's words if it is there
  // first.
  const auto has_both = ::testing::AnyOf(
      AllOf(
          HasSubstr("called all_reduce of 16 bytes (Float [4], sum)"),
          HasSubstr("called all_reduce of 40 bytes (Double [5], sum)")),
      AllOf(
          HasSubstr("rank 2: all_reduce (Float [4])"),
          HasSubstr("rank 3: all_reduce (Double [5])")));
  EXPECT_THAT(texts[2], has_both);
  EXPECT_THAT(texts[3], has_both);
}

TEST(Hierarchy, SaysHowCallsDisagreeBetweenMachines) {
  std::vector<std::string> texts(4);
  run_on_machines(
      {2, 2},
      [&](const World& world) {
        try {
          if (world.rank() < 2) {
            world.group().broadcast(torch::ones({4}), 1);
          } else {
            world.group().barrier();
          }
        } catch (const DistributedError& error) {
          texts[static_cast<std::size_t>(world.rank())] = error.what();
        }
      },
      milliseconds(20000));
  for (const std::string& text : texts) {
    EXPECT_THAT(
        text,
        ::testing::AllOf(
            ::testing::HasSubstr(
                "called broadcast of 16 bytes (Byte [16]), root 1"),
            ::testing::HasSubstr("called barrier")));
  }
}

TEST(Hierarchy, FailsOnAllRanksWhereOneLeaves) {
  const auto texts = failures_beside([](const World&) {});
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_THAT(texts[rank], ::testing::HasSubstr("all_reduce number 1"));
  EXPECT_THAT(
      texts[2], ::testing::HasSubstr("rank 3 has closed its connection"));
}

}  // namespace hierarchy_test
}  // namespace accelerate::detail
