#include <future>
#include <numeric>
#include <thread>

#include <rapidcheck.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <accelerate/error.h>

#include "base/machine/shared_segment.h"
#include "comm/group/begun_exchange.h"
#include "comm/group/group_impl.h"
#include "comm/transport/automatic_transport.h"
#include "comm/transport/shared_memory/memory/layout.h"
#include "comm/transport/shared_memory/shared_memory_transport.h"
#include "support/expect_error.h"
#include "support/memory_worlds.h"

namespace accelerate::detail {
namespace shared_memory_test {

using std::chrono::milliseconds;
using testing::expect_error;
using testing::run_in_memory_worlds;
using testing::run_on_ranks;

Connection& connection_of(const World& world) {
  return *world.group().impl()->connection;
}

// The values of rank `rank`; their sums depend on the order of addition.
at::Tensor values_of(int rank, std::int64_t count, at::ScalarType dtype) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + rank));
  const at::Tensor values =
      torch::randn({count}, generator, torch::dtype(torch::kDouble));
  return (values * std::pow(4.0, rank)).to(dtype);
}

// The sum in rank order, in fp32.
at::Tensor
sum_in_order(int num_ranks, std::int64_t count, at::ScalarType dtype) {
  at::Tensor sum = values_of(0, count, dtype).to(at::kFloat);
  for (int rank = 1; rank < num_ranks; ++rank)
    sum = sum + values_of(rank, count, dtype).to(at::kFloat);
  return sum.to(dtype);
}

class Sizes : public ::testing::TestWithParam<int> {};

TEST_P(Sizes, AreSummedInTheOrderOfTheRanks) {
  const int num_ranks = GetParam();
  const auto slot = static_cast<std::int64_t>(SegmentLayout::kSlotBytes);
  run_in_memory_worlds(num_ranks, [&](const World& world) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const std::int64_t count :
           {std::int64_t{1},
            std::int64_t{15},
            std::int64_t{4097},
            slot / 4,
            slot / 4 + 1,
            slot + 333}) {
        const at::Tensor expected = sum_in_order(num_ranks, count, dtype);
        const at::Tensor values = values_of(world.rank(), count, dtype);
        world.group().all_reduce(values);
        EXPECT_TRUE(torch::equal(values, expected)) << dtype << " " << count;

        const at::Tensor whole =
            values_of(world.rank(), count * num_ranks, dtype);
        const at::Tensor part = world.group().reduce_scatter(whole);
        EXPECT_TRUE(torch::equal(
            part,
            sum_in_order(num_ranks, count * num_ranks, dtype)
                .narrow(0, world.rank() * count, count)))
            << dtype << " " << count;

        const at::Tensor reduced = values_of(world.rank(), count, dtype);
        world.group().reduce(reduced, num_ranks - 1);
        EXPECT_TRUE(torch::equal(
            reduced,
            world.rank() == num_ranks - 1
                ? expected
                : values_of(world.rank(), count, dtype)));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sizes, ::testing::Values(2, 3, 4, 7));

TEST(SharedMemory, KeepsNaNsInMinimaAndMaxima) {
  run_in_memory_worlds(3, [](const World& world) {
    for (const int bearer : {0, 1, 2}) {
      for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
        const at::Tensor values = torch::full({2}, world.rank());
        const at::Tensor numbers = values.to(at::kFloat);
        if (world.rank() == bearer) numbers[0] = std::nan("");
        world.group().all_reduce(numbers, op);
        EXPECT_TRUE(std::isnan(numbers[0].item<float>()));
        EXPECT_EQ(numbers[1].item<float>(), op == ReduceOp::min ? 0 : 2);
      }
    }
  });
}

TEST(SharedMemory, WrapsIntegersAround) {
  run_in_memory_worlds(3, [](const World& world) {
    const at::Tensor small = torch::full({3}, 120, at::kChar);
    world.group().all_reduce(small);
    EXPECT_EQ(small[0].item<int>(), static_cast<std::int8_t>(360));
    const at::Tensor product = torch::full({3}, 60000, at::kUInt16);
    world.group().all_reduce(product, ReduceOp::product);
    EXPECT_EQ(
        product.to(at::kInt)[0].item<int>(),
        static_cast<std::uint16_t>(60000ULL * 60000 * 60000));
  });
}

// One collective, which all ranks choose from the same random numbers.
struct Call {
  int kind;
  std::int64_t count;
  int root;
  int group;
};

at::Tensor numbers(const World& world, const Call& call, int salt) {
  return torch::arange(call.count) * (salt + 1) + world.rank() * 7;
}

// Makes the call, and checks the result.
bool make_call(
    const World& world,
    const Group& group,
    const Call& call,
    int salt) {
  const auto of = [&](int peer) {
    return torch::arange(call.count) * (salt + 1) +
        group.world_ranks()[static_cast<std::size_t>(peer)] * 7;
  };
  const int size = group.size();
  const int root = call.root % size;
  at::Tensor sum = torch::zeros({call.count}, at::kLong);
  for (int peer = 0; peer < size; ++peer) sum += of(peer);
  const at::Tensor mine = numbers(world, call, salt);
  switch (call.kind) {
    case 0:
      group.all_reduce(mine);
      return torch::equal(mine, sum);
    case 1:
      group.broadcast(mine, root);
      return torch::equal(mine, of(root));
    case 2: {
      const auto all = group.all_gather(mine);
      for (int peer = 0; peer < size; ++peer) {
        if (!torch::equal(all[static_cast<std::size_t>(peer)], of(peer)))
          return false;
      }
      return true;
    }
    case 3:
      group.reduce(mine, root);
      return torch::equal(mine, group.rank() == root ? sum : of(group.rank()));
    case 4: {
      std::vector<at::Tensor> parts;
      for (int peer = 0; peer < size; ++peer)
        parts.push_back(
            mine.narrow(0, 0, std::min<std::int64_t>(peer, call.count)));
      const auto received = group.all_to_all(parts);
      for (int peer = 0; peer < size; ++peer) {
        if (!torch::equal(
                received[static_cast<std::size_t>(peer)],
                of(peer).narrow(
                    0, 0, std::min<std::int64_t>(group.rank(), call.count))))
          return false;
      }
      return true;
    }
    case 5: {
      const auto all = group.gather(mine, root);
      for (std::size_t peer = 0; peer < all.size(); ++peer) {
        if (!torch::equal(all[peer], of(static_cast<int>(peer)))) return false;
      }
      return true;
    }
    case 6: {
      const at::Tensor whole = mine.repeat({size});
      return torch::equal(group.reduce_scatter(whole), sum);
    }
    default:
      group.barrier();
      return true;
  }
}

TEST(SharedMemory, CarriesAnyHistoryOfCalls) {
  EXPECT_TRUE(rc::check("histories", [] {
    const int num_ranks = *rc::gen::inRange(2, 6);
    const auto history =
        *rc::gen::container<std::vector<Call>>(rc::gen::build<Call>(
            rc::gen::set(&Call::kind, rc::gen::inRange(0, 8)),
            rc::gen::set(
                &Call::count,
                rc::gen::map(
                    rc::gen::inRange(0, 19),
                    [](int bits) { return std::int64_t{1} << bits; })),
            rc::gen::set(&Call::root, rc::gen::inRange(0, 5)),
            rc::gen::set(&Call::group, rc::gen::inRange(0, 2))));
    std::atomic<int> num_wrong = 0;
    run_in_memory_worlds(num_ranks, [&](const World& world) {
      // Groups of the even and the odd ranks, beside the group of all ranks.
      std::vector<int> half;
      for (int rank = world.rank() % 2; rank < num_ranks; rank += 2)
        half.push_back(rank);
      const Group halves = world.new_group(half);
      for (std::size_t i = 0; i < history.size(); ++i) {
        const Group& group = history[i].group == 0 ? world.group() : halves;
        if (!make_call(world, group, history[i], static_cast<int>(i)))
          ++num_wrong;
      }
    });
    RC_ASSERT(num_wrong.load() == 0);
  }));
}

TEST(SharedMemory, CarriesSeveralGroupsOnThreadsOfTheirOwn) {
  run_in_memory_worlds(3, [](const World& world) {
    std::vector<std::future<bool>> threads;
    for (int k = 0; k < 3; ++k) {
      const Group group = world.new_group({0, 1, 2});
      threads.push_back(std::async(std::launch::async, [group, k] {
        bool is_right = true;
        for (int i = 0; i < 50; ++i) {
          const at::Tensor value =
              torch::full({1000 * (k + 1)}, group.rank() + i);
          group.all_reduce(value);
          is_right = is_right &&
              torch::equal(value, torch::full_like(value, 3 + 3 * i));
        }
        return is_right;
      }));
    }
    for (auto& thread : threads) EXPECT_TRUE(thread.get());
  });
}

TEST(SharedMemory, MatchesMessagesByTagInAnyOrder) {
  run_in_memory_worlds(2, [](const World& world) {
    // More than a channel holds, in both directions at once.
    constexpr std::int64_t kCount = 200'000;
    const int peer = 1 - world.rank();
    std::vector<PeerMessage> sent, received;
    for (int tag = 0; tag < 4; ++tag) {
      sent.push_back(
          {torch::full({kCount + tag}, world.rank() * 10 + tag), peer, tag});
    }
    for (int tag = 3; tag >= 0; --tag) {
      received.push_back({torch::empty({kCount + tag}, at::kLong), peer, tag});
    }
    BegunExchange::messages(world.group(), "crossing", sent, received).wait();
    for (int tag = 3; tag >= 0; --tag) {
      const at::Tensor& got =
          received[static_cast<std::size_t>(3 - tag)].tensor;
      EXPECT_TRUE(torch::equal(got, torch::full_like(got, peer * 10 + tag)));
    }
  });
}

TEST(SharedMemory, LetsMessagesCrossACollective) {
  run_in_memory_worlds(2, [](const World& world) {
    Connection& connection = connection_of(world);
    const at::Tensor large = torch::full({1'000'000}, world.rank());
    const at::Tensor bytes = large.view(at::kByte);
    if (world.rank() == 0) {
      const Work sent = connection.send(bytes, 1, 5);
      world.group().barrier();
      sent->wait();
    } else {
      world.group().barrier();
      const at::Tensor received = torch::empty({1'000'000}, at::kLong);
      connection.receive(received.view(at::kByte), 0, 5)->wait();
      EXPECT_EQ(received.sum().item<std::int64_t>(), 0);
    }
  });
}

TEST(SharedMemory, CompletesFuturesThatNoThreadAwaits) {
  run_in_memory_worlds(2, [](const World& world) {
    const at::Tensor value = torch::full({100'000}, world.rank() + 1.0F);
    const Work work = connection_of(world).all_reduce(value, ReduceOp::sum);
    const auto future = work->getFuture();
    future->wait();
    EXPECT_EQ(future->value().toTensorVector()[0][5].item<float>(), 3);
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
  });
}

TEST(SharedMemory, KeepsTheMemoryOfWorkThatIsDropped) {
  run_in_memory_worlds(2, [](const World& world) {
    if (world.rank() == 0) {
      // The work and the tensor are gone when rank 1 arrives.
      connection_of(world).all_reduce(
          torch::full({50'000}, 1.0F), ReduceOp::sum);
    }
    if (world.rank() == 0) {
      world.store().set("rank 0 is here", "yes");
    } else {
      EXPECT_EQ(world.store().get("rank 0 is here"), "yes");
      const at::Tensor value = torch::full({50'000}, 2.0F);
      world.group().all_reduce(value);
      EXPECT_EQ(value.sum().item<double>(), 150'000);
    }
    world.group().barrier();
  });
}

// The error of the rank that waits while the others do `other`.
std::string failure_beside(
    const std::function<void(const World&)>& other,
    int num_ranks) {
  std::string text;
  run_in_memory_worlds(
      num_ranks,
      [&](const World& world) {
        if (world.rank() > 0) {
          try {
            other(world);
          } catch (const DistributedError&) {
            // Expected where ranks disagree.
          }
          return;
        }
        try {
          const at::Tensor value = torch::ones({4});
          world.group().all_reduce(value);
        } catch (const DistributedError& error) {
          text = error.what();
        }
      },
      milliseconds(300));
  return text;
}

TEST(SharedMemory, NamesTheRankThatHasGone) {
  const std::string text = failure_beside(
      [](const World& world) {
        if (world.rank() == 2) return;  // closes its connection
        world.group().all_reduce(torch::ones({4}));
      },
      3);
  EXPECT_THAT(text, ::testing::HasSubstr("rank 2 has closed its connection"));
}

// The board's list of all calls replaces the transport's words if it is there
// first.
TEST(SharedMemory, SaysHowCallsDisagree) {
  const auto has_both = [](const std::string& words,
                           const std::string& first,
                           const std::string& second) {
    using ::testing::HasSubstr;
    return ::testing::AnyOf(
        HasSubstr(words),
        ::testing::AllOf(
            HasSubstr("rank 0: " + first), HasSubstr("rank 1: " + second)));
  };
  EXPECT_THAT(
      failure_beside(
          [](const World& world) {
            world.group().all_reduce(torch::ones({5}, at::kDouble));
          },
          2),
      has_both(
          "rank 0 called all_reduce of 16 bytes (Float [4], sum), but rank 1 "
          "called all_reduce of 40 bytes (Double [5], sum)",
          "all_reduce (Float [4])",
          "all_reduce (Double [5])"));
  EXPECT_THAT(
      failure_beside([](const World& world) { world.group().barrier(); }, 2),
      has_both(
          "rank 0 called all_reduce of 16 bytes (Float [4], sum), but rank 1 "
          "called barrier",
          "all_reduce (Float [4])",
          "barrier"));
}

TEST(SharedMemory, NamesTheRankThatIsLate) {
  std::promise<void> has_failed;
  const std::shared_future<void> failure = has_failed.get_future().share();
  std::string text;
  run_in_memory_worlds(
      3,
      [&](const World& world) {
        if (world.rank() == 1) {
          failure.wait();
          return;
        }
        try {
          world.group().all_reduce(torch::ones({4}));
        } catch (const DistributedError& error) {
          if (world.rank() == 0) {
            text = error.what();
            has_failed.set_value();
          }
        }
      },
      milliseconds(300));
  EXPECT_THAT(
      text,
      ::testing::HasSubstr("all_reduce of 16 bytes (Float [4], sum) timed out "
                           "waiting for rank 1"));
}

TEST(SharedMemory, RefusesMessagesOfAnotherSize) {
  run_in_memory_worlds(2, [](const World& world) {
    Connection& connection = connection_of(world);
    const at::Tensor bytes = torch::zeros({world.rank() + 3}, at::kByte);
    const auto exchange = [&] {
      if (world.rank() == 0) {
        connection.send(bytes, 1, 4)->wait();
        world.group().barrier();
      } else {
        connection.receive(bytes, 0, 4)->wait();
      }
    };
    if (world.rank() == 1) {
      expect_error<std::runtime_error>(
          exchange,
          "rank 1 called receive of 4 bytes, tag 4, but rank 0 called");
    } else {
      EXPECT_ANY_THROW(exchange());
    }
  });
}

TEST(SharedSegment, IsRefusedAcrossMachinesAndContainers) {
  SharedSegment segment = SharedSegment::create(4096);
  const std::string ticket = segment.ticket();
  const SharedSegment same = SharedSegment::open(ticket);
  segment.data()[100] = std::byte{42};
  EXPECT_EQ(same.data()[100], std::byte{42});
  expect_error<SegmentError>(
      [&] { SharedSegment::open("x" + ticket); },
      "the ranks are on different machines");
  expect_error<SegmentError>(
      [&] { SharedSegment::open(ticket.substr(0, ticket.size() - 1) + "x"); },
      "is another container's");
  expect_error<SegmentError>(
      [] { SharedSegment::open("ticket"); }, "\"ticket\" names no segment");
  segment.close_ticket();
  EXPECT_THROW(SharedSegment::open(ticket), SegmentError);
}

// Tells the ranks about a segment on another machine.
class OtherMachineStore final : public c10d::HashStore {
 public:
  std::vector<std::uint8_t> get(const std::string& key) override {
    auto value = c10d::HashStore::get(key);
    if (key.find("ticket") != std::string::npos)
      value.insert(value.begin(), 'x');
    return value;
  }
};

TEST(AutomaticTransport, UsesGlooWhereMemoryCannotBeShared) {
  const auto store = c10::make_intrusive<OtherMachineStore>();
  std::atomic<int> num_logged = 0;
  run_on_ranks(2, [&](const WorldOptions& options) {
    const auto transport = make_automatic_transport({});
    const auto connection = transport->connect(
        {.store = store,
         .name = "test",
         .rank = *options.rank,
         .world_ranks = {0, 1},
         .timeout = std::chrono::seconds(20),
         .logger = Logger(
             [&](const LogRecord& record) {
               EXPECT_THAT(
                   record.message,
                   ::testing::HasSubstr("they are on different nodes"));
               ++num_logged;
             },
             LogLevel::warning)});
    EXPECT_EQ(connection->facts().name, "gloo");
    const at::Tensor value = torch::ones({2});
    connection->all_reduce(value, ReduceOp::sum)->wait();
    EXPECT_EQ(value[0].item<float>(), 2);
  });
  // Once for the machine.
  EXPECT_EQ(num_logged.load(), 1);
}

TEST(AutomaticTransport, IsNotReplacedWhereSharedMemoryWasAskedFor) {
  const auto store = c10::make_intrusive<OtherMachineStore>();
  run_on_ranks(2, [&](const WorldOptions& options) {
    const auto transport = make_shared_memory_transport({});
    expect_error<CannotShareMemory>(
        [&] {
          const auto connection = transport->connect(
              {.store = store,
               .name = "test",
               .rank = *options.rank,
               .world_ranks = {0, 1},
               .timeout = std::chrono::seconds(20)});
        },
        "they are on different nodes");
  });
}

}  // namespace shared_memory_test
}  // namespace accelerate::detail
