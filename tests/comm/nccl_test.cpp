// NCCL's transport on the pretend device, with a fake library.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>
#include <accelerate/world.h>

#include "comm/group/begun_exchange.h"
#include "comm/group/group_impl.h"
#include "comm/transport/automatic_transport.h"
#include "comm/transport/nccl/device_transport.h"
#include "comm/transport/nccl/nccl_library.h"
#include "support/expect_error.h"
#include "support/nccl_ranks.h"
#include "support/pretend_device.h"

namespace accelerate {
namespace nccl_test {

using detail::NcclLibrary;
using testing::expect_error;
using testing::FakeNcclFaultScope;
using testing::run_in_nccl_worlds;
using testing::run_on_nccl_ranks;

const std::vector<at::ScalarType> kTypes{
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
    at::kFloat8_e4m3fn};

at::Tensor on(const World& world, const at::Tensor& tensor) {
  return tensor.to(world.device());
}
void expect_values(const at::Tensor& tensor, const at::Tensor& expected) {
  EXPECT_FALSE(tensor.is_cpu());
  const at::Tensor found = tensor.cpu();
  EXPECT_EQ(found.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(torch::equal(
      found.to(at::kComplexDouble), expected.to(at::kComplexDouble)))
      << found << " instead of " << expected;
}

class NcclRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Of, NcclRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(NcclRanks, ReduceEveryTypeOnTheirDevices) {
  run_in_nccl_worlds(GetParam(), [](const World& world) {
    const int n = world.size();
    for (const at::ScalarType type : kTypes) {
      SCOPED_TRACE(c10::toString(type));
      const at::Tensor value =
          on(world, torch::full({3}, world.rank() + 1.0).to(type));
      world.group().all_reduce(value);
      const double sum = type == at::kBool ? 1 : n * (n + 1) / 2;
      expect_values(value, torch::full({3}, sum).to(type));
      const at::Tensor largest =
          on(world, torch::full({2, 2}, world.rank() + 1.0).to(type));
      if (!largest.is_complex()) {
        world.group().all_reduce(largest, ReduceOp::max);
        expect_values(
            largest, torch::full({2, 2}, type == at::kBool ? 1.0 : n).to(type));
      }
    }
    const at::Tensor mean = on(world, torch::full({2}, world.rank() * 2.0));
    world.group().all_reduce(mean, ReduceOp::mean);
    expect_values(mean, torch::full({2}, n - 1.0));
    const at::Tensor bits = on(world, torch::full({2}, 1 << world.rank()));
    world.group().all_reduce(bits, ReduceOp::bit_or);
    expect_values(bits, torch::full({2}, (1 << n) - 1));
  });
}

TEST_P(NcclRanks, MoveTensorsBetweenTheirDevices) {
  run_in_nccl_worlds(GetParam(), [](const World& world) {
    const Group& group = world.group();
    const int n = world.size(), mine = world.rank(), last = n - 1;
    const at::Tensor value = on(world, torch::full({2, 3}, mine, at::kShort));
    const auto all = group.all_gather(value.t());
    for (int r = 0; r < n; ++r) {
      expect_values(
          all[static_cast<std::size_t>(r)], torch::full({3, 2}, r, at::kShort));
    }
    const auto gathered = group.gather(value, last);
    EXPECT_EQ(gathered.size(), mine == last ? static_cast<std::size_t>(n) : 0U);
    for (std::size_t r = 0; r < gathered.size(); ++r) {
      expect_values(
          gathered[r], torch::full({2, 3}, static_cast<int>(r), at::kShort));
    }
    std::vector<at::Tensor> parts;
    for (int r = 0; r < n; ++r)
      parts.push_back(on(world, torch::full({r}, 10 * mine + r)));
    const auto received = group.all_to_all(parts);
    for (int r = 0; r < n; ++r) {
      expect_values(
          received[static_cast<std::size_t>(r)],
          torch::full({mine}, 10 * r + mine));
    }
    const at::Tensor output = on(world, torch::zeros({2}, at::kLong));
    std::vector<at::Tensor> inputs;
    for (int r = 0; r < n; ++r)
      inputs.push_back(on(world, torch::full({2}, r * r)));
    group.scatter(output, inputs, 0);
    expect_values(output, torch::full({2}, mine * mine));
    group.broadcast(output, last);
    expect_values(output, torch::full({2}, last * last));
    expect_values(
        group.reduce_scatter(on(world, torch::arange(2 * n))),
        torch::arange(2 * n).narrow(0, 2 * mine, 2) * n);
    const at::Tensor once = on(world, torch::full({2}, mine + 1));
    group.reduce(once, 0);
    expect_values(
        once, torch::full({2}, mine == 0 ? n * (n + 1) / 2 : mine + 1));
    expect_values(
        group.all_gather(on(world, torch::empty({0})))[0], torch::empty({0}));
    group.barrier();
    if (n > 1 && mine == 0) group.send(on(world, torch::full({2}, 9)), 1, 5);
    if (n > 1 && mine == 1) {
      group.recv(output, 0, 5);
      expect_values(output, torch::full({2}, 9));
    }
    // In host memory, in the same world.
    const at::Tensor host = torch::full({2}, mine + 1.0);
    group.all_reduce(host);
    EXPECT_EQ(host[0].item<double>(), n * (n + 1) / 2);
  });
}

TEST(Nccl, HasStreamsWaitAndNotTheHost) {
  std::promise<void> first_has_waited;
  run_in_nccl_worlds(2, [&](const World& world) {
    detail::Connection& connection = *world.group().impl()->connection;
    connection.all_reduce(on(world, torch::zeros({1})), ReduceOp::sum)->wait();
    const at::Tensor value = on(world, torch::full({2}, world.rank() + 1.0));
    if (world.rank() == 1) first_has_waited.get_future().get();
    const detail::Work work = connection.all_reduce(value, ReduceOp::sum);
    work->wait();
    if (world.rank() == 0) {
      EXPECT_FALSE(work->isCompleted());
      first_has_waited.set_value();
    }
    expect_values(value, torch::full({2}, 3.0));
    EXPECT_TRUE(work->isCompleted());
  });
}

TEST(Nccl, GivesFuturesThatOnlyStreamsWaitFor) {
  run_in_nccl_worlds(2, [](const World& world) {
    detail::Connection& connection = *world.group().impl()->connection;
    const at::Tensor value = on(world, torch::full({2}, world.rank() + 1.0));
    const auto future =
        connection.all_reduce(value, ReduceOp::sum)->getFuture();
    EXPECT_TRUE(future->completed());
    future->wait();
    expect_values(value, torch::full({2}, 3.0));
  });
}

TEST(Nccl, HasACommunicatorForEachGroup) {
  run_in_nccl_worlds(4, [](const World& world) {
    const int first = world.rank() % 2;
    const Group pair = world.new_group({first, first + 2});
    for (int i = 0; i < 3; ++i) {
      const at::Tensor all = on(world, torch::full({2}, world.rank()));
      const at::Tensor half = on(world, torch::full({2}, world.rank()));
      world.group().all_reduce(all);
      pair.all_reduce(half);
      expect_values(all, torch::full({2}, 6));
      expect_values(half, torch::full({2}, world.rank() % 2 == 0 ? 2 : 4));
    }
  });
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

// A history of calls of three groups that overlap, whose results are waited for
// in any order, or never.
void run_history(const World& world, std::uint32_t seed) {
  struct Begun {
    detail::Work work;
    at::Tensor value;
    double expected;
  };
  const std::vector<std::vector<int>> members{{0, 1, 2}, {0, 1}, {1, 2}};
  std::vector<Group> groups;
  for (const std::vector<int>& ranks : members) {
    const bool is_member = std::ranges::count(ranks, world.rank()) > 0;
    groups.push_back(is_member ? world.new_group(ranks) : Group());
  }
  const auto finish = [](const Begun& each) {
    each.work->wait();
    expect_values(each.value, torch::full({4}, each.expected, at::kDouble));
  };
  std::vector<Begun> begun;
  std::mt19937 same(seed);
  std::mt19937 own(seed + static_cast<unsigned>(world.rank()) + 1U);
  for (int call = 0; call < 12; ++call) {
    const std::size_t which = same() % members.size();
    const double add = same() % 100;
    if (groups[which].size() == 1) continue;
    double expected = 0;
    for (const int rank : members[which]) expected += rank + add;
    const at::Tensor value =
        on(world, torch::full({4}, world.rank() + add, at::kDouble));
    begun.push_back(
        {groups[which].impl()->connection->all_reduce(value, ReduceOp::sum),
         value,
         expected});
    if (own() % 3 > 0) continue;
    const auto found =
        begun.begin() + static_cast<std::ptrdiff_t>(own() % begun.size());
    if (own() % 4 > 0) finish(*found);
    begun.erase(found);
  }
  for (const Begun& each : begun) finish(each);
}

TEST(Nccl, RunsCallsOfOverlappingGroupsInOrder) {
  EXPECT_TRUE(rc::check([](std::uint32_t seed) {
    run_in_nccl_worlds(
        3, [&](const World& world) { run_history(world, seed); });
    RC_ASSERT(testing::num_nccl_communicators() == 0);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Rank 2 leaves at any call. Groups without it go on; those with it end.
void run_until_a_rank_leaves(const World& world, std::uint32_t seed) {
  std::mt19937 same(seed);
  const unsigned last_call = same() % 6;
  std::vector<Group> groups{world.new_group({0, 1, 2})};
  groups.push_back(world.rank() < 2 ? world.new_group({0, 1}) : Group());
  bool has_ended = false;
  for (unsigned call = 0; call < 8; ++call) {
    const std::size_t which = same() % 2;
    if (world.rank() == 2 && call == last_call) return;
    if (groups[which].size() == 1) continue;
    const at::Tensor value = on(world, torch::full({2}, world.rank() + call));
    try {
      groups[which].all_reduce(value);
    } catch (const DistributedError&) {
      EXPECT_EQ(which, 0U);
      EXPECT_GE(call, last_call);
      has_ended = true;
      continue;
    }
    const at::Tensor found = value.cpu();
    EXPECT_FALSE(which == 0 && has_ended);
    // A call that rank 2 does not make leaves values undefined.
    if (which == 1 || call < last_call) {
      EXPECT_EQ(
          found[0].item<std::int64_t>(),
          which == 1 ? 1 + 2 * call : 3 + 3 * call);
    }
  }
}

TEST(Nccl, EndsOnlyTheGroupsOfARankThatLeaves) {
  EXPECT_TRUE(rc::check([](std::uint32_t seed) {
    run_in_nccl_worlds(
        3, [&](const World& world) { run_until_a_rank_leaves(world, seed); });
    RC_ASSERT(testing::num_nccl_communicators() == 0);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(Nccl, ShowsGarbageToThoseWhoDoNotWait) {
  run_in_nccl_worlds(2, [](const World& world) {
    const Group& group = world.group();
    detail::Connection& connection = *group.impl()->connection;
    const at::Tensor mine = on(world, torch::full({2}, world.rank()));
    const at::Tensor all = torch::empty({2, 2}, mine.options());
    const detail::Work work = connection.all_gather(all, mine);
    const at::Tensor early = all.cpu();
    // In host memory, so that no device gets on.
    group.barrier();
    work->wait();
    expect_values(all, torch::tensor({{0, 0}, {1, 1}}));
    EXPECT_EQ(
        early[0][0].item<std::int64_t>(),
        static_cast<std::int64_t>(0xa5a5a5a5a5a5a5a5));
  });
}

TEST(Nccl, EndsWhatWasBegunWhenARankLeaves) {
  run_on_nccl_ranks(3, [](const WorldOptions& options) {
    at::Tensor value;
    {
      const World world(options);
      value = on(world, torch::full({2}, world.rank() + 1));
      world.group().all_reduce(value);
    }
    expect_values(value, torch::full({2}, 6));
  });
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

TEST(Nccl, EndsTheGroupWhenARankIsGone) {
  std::atomic<int> num_failed = 0;
  run_on_nccl_ranks(3, [&](WorldOptions options) {
    options.timeout = std::chrono::seconds(60);
    const World world(options);
    const at::Tensor value = on(world, torch::ones({2}));
    world.group().all_reduce(value);
    value.cpu();
    if (world.rank() == 1) return;
    world.group().all_reduce(value);
    value.cpu();
    expect_error<DistributedError>(
        [&] { world.group().all_reduce(value); }, "rank 1 ");
    ++num_failed;
  });
  EXPECT_EQ(num_failed, 2);
}

TEST(Nccl, NamesTheCallThatCannotConnect) {
  const FakeNcclFaultScope faults({.fails_to_connect = true});
  run_in_nccl_worlds(2, [](const World& world) {
    const at::Tensor value = on(world, torch::ones({2}));
    for (int i = 0; i < 2; ++i) {
      expect_error<DistributedError>(
          [&] { world.group().all_reduce(value); },
          "NCCL's ncclCommInitRankConfig failed with code 4: invalid argument");
    }
    // Groups that do not use their devices never connect them.
    const at::Tensor host = torch::ones({2});
    world.group().all_reduce(host);
    EXPECT_EQ(host[0].item<double>(), 2);
  });
}

// The rank whose limit ends first aborts, which others may notice before theirs
// ends.
TEST(Nccl, NamesAnOperationThatTakesTooLong) {
  const FakeNcclFaultScope faults({.hanging_operation = 2});
  std::atomic<int> num_failed = 0, num_timed_out = 0;
  run_on_nccl_ranks(2, [&](WorldOptions options) {
    options.timeout = std::chrono::seconds(3);
    const World world(options);
    const at::Tensor value = on(world, torch::ones({2}));
    world.group().all_reduce(value);
    world.group().all_reduce(value);
    // The device is free again, but what it computed is not to be used.
    value.cpu();
    try {
      world.group().all_reduce(value);
    } catch (const DistributedError& error) {
      EXPECT_THAT(
          error.what(),
          ::testing::AnyOf(
              ::testing::HasSubstr("timed out"),
              ::testing::HasSubstr("remote process exited")));
      num_timed_out +=
          std::string(error.what()).find("timed out") != std::string::npos ? 1
                                                                           : 0;
      ++num_failed;
    }
  });
  EXPECT_EQ(num_failed, 2);
  EXPECT_GE(num_timed_out, 1);
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

TEST(Nccl, NamesTheRankThatHasNotBegunAnOperation) {
  const FakeNcclFaultScope faults({.hides_aborts = true});
  std::promise<void> first, second;
  run_on_nccl_ranks(3, [&](WorldOptions options) {
    options.timeout = std::chrono::seconds(3);
    const World world(options);
    const at::Tensor value = on(world, torch::ones({2}));
    detail::Connection& connection = *world.group().impl()->connection;
    connection.all_reduce(value, ReduceOp::sum)->wait();
    value.cpu();
    if (world.rank() == 1) {
      first.get_future().get();
      second.get_future().get();
      return;
    }
    const detail::Work work = connection.all_reduce(value, ReduceOp::sum);
    work->wait();
    value.cpu();
    expect_error<detail::NcclError>(
        [&] { work->wait(); },
        "NCCL's all_reduce, operation 2 of the group on devices, timed out "
        "after 3000 ms: rank 1 has not begun it");
    (world.rank() == 0 ? first : second).set_value();
  });
}

// Before the timeout, and without ending anything.
TEST(Nccl, WarnsOfTheRankThatHasNotBegunAnOperation) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  std::promise<void> has_warned;
  run_on_nccl_ranks(3, [&](WorldOptions options) {
    options.timeout = std::chrono::seconds(60);
    options.hang_seconds = 0.6;
    options.on_hang = "warn";
    if (options.rank == 0) {
      const auto note = [&](const LogRecord& record) {
        if (record.message.find("on devices") == record.message.npos) return;
        const std::lock_guard lock(mutex);
        warnings.emplace_back(record.message);
        if (warnings.size() == 1) has_warned.set_value();
      };
      options.logger = Logger(note, LogLevel::warning);
    }
    const World world(options);
    const at::Tensor value = on(world, torch::ones({2}));
    detail::Connection& connection = *world.group().impl()->connection;
    connection.all_reduce(value, ReduceOp::sum)->wait();
    value.cpu();
    if (world.rank() == 1) has_warned.get_future().get();
    connection.all_reduce(value, ReduceOp::sum)->wait();
    expect_values(value, torch::full({2}, 9.0));
  });
  // Rank 2 may have begun it too late to be known.
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_THAT(
      warnings[0],
      ::testing::StartsWith(
          "rank 0 has waited 0.6 s for all_reduce, operation 2 of group "
          "\"world\" on devices: rank 1"));
  EXPECT_THAT(warnings[0], ::testing::EndsWith("not begun it"));
}

TEST(Nccl, StartsOperationsTogether) {
  run_in_nccl_worlds(2, [](const World& world) {
    const Group& group = world.group();
    detail::Connection& connection = *group.impl()->connection;
    const at::Tensor mine = on(world, torch::full({2}, world.rank() + 1.0));
    const at::Tensor all = torch::empty({2, 2}, mine.options());
    const at::Tensor sum = mine.clone(), got = torch::empty_like(mine);
    const at::Tensor sent = mine.clone();
    connection.all_reduce(on(world, torch::zeros({1})), ReduceOp::sum)->wait();
    group.barrier();
    const int before = testing::num_nccl_starts();
    group.barrier();
    std::vector<detail::Work> works;
    connection.together([&] {
      works.push_back(connection.all_gather(all, mine));
      // Follows what the current stream got meanwhile.
      sum.mul_(10);
      works.push_back(connection.all_reduce(sum, ReduceOp::sum));
      const int peer = 1 - world.rank();
      works.push_back(
          connection.exchange({{sent, peer}}, {{got, peer}}).receives);
    });
    for (const detail::Work& work : works) work->wait();
    expect_values(all, torch::tensor({{1.0, 1.0}, {2.0, 2.0}}));
    expect_values(sum, torch::full({2}, 30.0));
    expect_values(got, torch::full({2}, 2.0 - world.rank()));
    group.barrier();
    EXPECT_EQ(testing::num_nccl_starts() - before, world.size());
  });
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

// A rank whose tokens go to its own experts has no messages, but connects: its
// next operation waits for ranks that wait for the connection.
TEST(Nccl, ConnectsRanksWithoutMessages) {
  run_on_nccl_ranks(3, [](WorldOptions options) {
    options.timeout = std::chrono::seconds(20);
    const World world(options);
    const Group group = world.new_group({0, 1, 2});
    const at::Tensor mine = on(world, torch::full({2}, world.rank() + 1.0));
    const at::Tensor got = torch::zeros_like(mine);
    const int count = world.rank() == 2 ? 0 : 2;
    std::vector<detail::PeerMessage> sends, receives;
    for (int peer = 0; peer < world.size(); ++peer) {
      if (peer == world.rank()) continue;
      const int each = peer == 2 ? 0 : count;
      sends.push_back({mine.narrow(0, 0, each), peer});
      receives.push_back({got.narrow(0, 0, each), peer});
    }
    auto exchange =
        detail::BegunExchange::exchange(group, "sending", sends, receives);
    const at::Tensor sum = mine.clone();
    world.group().all_reduce(sum);
    exchange.wait();
    expect_values(sum, torch::full({2}, 6.0));
    const double expected = world.rank() == 2 ? 0 : 2 - world.rank();
    expect_values(got, torch::full({2}, expected));
    // All count it, so that late ranks are named rightly.
    group.all_reduce(mine);
    world.wait_for_everyone();
  });
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

TEST(Nccl, SaysWhatTheHostHasReadMayBeUndefined) {
  const FakeNcclFaultScope faults({.failing_operation = 2});
  run_on_nccl_ranks(2, [](WorldOptions options) {
    options.timeout = std::chrono::seconds(60);
    const World world(options);
    const Group group = world.new_group({0, 1});
    const at::Tensor value = on(world, torch::ones({2}));
    group.all_reduce(value);
    value.cpu();
    detail::require_intact(group, "all_reduce");
    detail::require_intact(world);
    group.all_reduce(value);
    value.cpu();
    expect_error<DistributedError>(
        [&] { detail::require_intact(group, "all_reduce"); },
        "remote process exited");
    expect_error<DistributedError>(
        [&] { detail::require_intact(world); },
        "[comm] an operation between devices has failed, so what depends on it "
        "is undefined: ");
    // Another group, of which nothing has failed.
    detail::require_intact(world.group(), "all_reduce");
  });
}

TEST(Nccl, EndsTheGroupWhenOperationsCannotStartTogether) {
  std::atomic<int> num_failed = 0;
  run_on_nccl_ranks(2, [&](const WorldOptions& options) {
    const World world(options);
    detail::Connection& connection = *world.group().impl()->connection;
    const at::Tensor value = on(world, torch::ones({2}));
    connection.all_reduce(value, ReduceOp::sum)->wait();
    value.cpu();
    try {
      connection.together([&] {
        connection.all_reduce(value, ReduceOp::sum);
        throw std::runtime_error("a bug");
      });
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "a bug");
      ++num_failed;
    }
    expect_error<DistributedError>(
        [&] { world.group().all_reduce(value); }, "a bug");
  });
  EXPECT_EQ(num_failed, 2);
  EXPECT_EQ(testing::num_nccl_communicators(), 0);
}

// The others are not told by NCCL, but by the store.
TEST(Nccl, EndsTheGroupWhenARankAborts) {
  const FakeNcclFaultScope faults({.hides_aborts = true});
  std::promise<void> has_ended;
  run_on_nccl_ranks(2, [&](WorldOptions options) {
    options.timeout = std::chrono::seconds(60);
    const World world(options);
    const at::Tensor value = on(world, torch::ones({2}));
    detail::Connection& connection = *world.group().impl()->connection;
    connection.all_reduce(value, ReduceOp::sum)->wait();
    value.cpu();
    if (world.rank() == 1) {
      connection.abort();
      has_ended.get_future().get();
      return;
    }
    const detail::Work work = connection.all_reduce(value, ReduceOp::sum);
    work->wait();
    value.cpu();
    expect_error<detail::NcclError>(
        [&] { work->wait(); },
        "rank 1 has ended the group: this rank has left the group");
    has_ended.set_value();
  });
}

TEST(Nccl, EndsTheGroupWhenNcclReportsAFailure) {
  const FakeNcclFaultScope faults({.failing_operation = 2});
  std::atomic<int> num_failed = 0;
  run_on_nccl_ranks(3, [&](WorldOptions options) {
    options.timeout = std::chrono::seconds(60);
    const World world(options);
    const at::Tensor value = on(world, torch::ones({2}));
    world.group().all_reduce(value);
    world.group().all_reduce(value);
    value.cpu();
    expect_error<DistributedError>(
        [&] { world.group().all_reduce(value); }, "remote process exited");
    ++num_failed;
  });
  EXPECT_EQ(num_failed, 3);
}

TEST(Nccl, NamesRanksThatDoNotConnect) {
  const FakeNcclFaultScope faults({.never_connects = true});
  run_on_nccl_ranks(2, [](WorldOptions options) {
    options.timeout = std::chrono::seconds(2);
    const World world(options);
    expect_error<DistributedError>(
        [&] { world.group().all_reduce(on(world, torch::ones({2}))); },
        "timed out");
  });
}

TEST(NcclLibrary, MustBeThereAndNewEnough) {
  expect_error<ConfigError>(
      [] { NcclLibrary::open("/no/such/libnccl.so.2"); },
      "[comm] NCCL could not be opened; it was looked for as "
      "\"/no/such/libnccl.so.2\" (");
  expect_error<ConfigError>(
      [] { NcclLibrary::open("/no/such/libnccl.so.2"); },
      "; install it, or set ACCELERATE_NCCL_LIBRARY to its path");
  expect_error<ConfigError>(
      [] { NcclLibrary::open("libm.so.6"); },
      "[comm] NCCL lacks the function \"ncclGetVersion\"");
  const FakeNcclFaultScope faults({.version = 21505});
  expect_error<ConfigError>(
      [] { NcclLibrary::open(testing::fake_nccl_path()); },
      "[comm] NCCL must be of version 2.18.0 or newer, but is 2.15.5");
}

TEST(NcclLibrary, TellsItsVersion) {
  EXPECT_EQ(
      NcclLibrary::open(testing::fake_nccl_path())->version_text(), "2.28.9");
}

TEST(DeviceTransport, IsOnlyForDevicesThatNcclKnows) {
  using detail::NcclUse;
  using detail::with_nccl;
  detail::TransportSettings settings{.device = at::Device(at::kCPU)};
  const auto host = detail::make_automatic_transport(settings);
  EXPECT_EQ(with_nccl(host, settings, NcclUse::if_possible), host);
  expect_error<ConfigError>(
      [&] { with_nccl(host, settings, NcclUse::required); },
      "[comm] the transport \"nccl\" must have ranks on CUDA devices, but this "
      "one computes on cpu; use automatic");
  settings.device = at::Device(at::kCUDA, 0);
  settings.environment.set("ACCELERATE_NCCL_LIBRARY", "/no/such/libnccl.so.2");
  expect_error<ConfigError>(
      [&] { with_nccl(host, settings, NcclUse::required); },
      "[comm] NCCL could not be opened");
  EXPECT_NE(with_nccl(host, settings, NcclUse::if_possible), host);
}

TEST(DeviceTransport, IsRefusedToWorldsOnCpus) {
  run_on_nccl_ranks(2, [](WorldOptions options) {
    options.device = at::Device(at::kCPU);
    options.own_transport = nullptr;
    options.transport = "nccl";
    expect_error<ConfigError>(
        [&] { World{options}; },
        "the transport \"nccl\" must have ranks on CUDA devices");
  });
}

// Shared memory and NCCL in one world, for the ranks' own processes and devices.
detail::TransportSettings settings_with(
    const at::Device& device,
    const std::string& library) {
  detail::TransportSettings settings{.device = device};
  settings.environment.set("ACCELERATE_NCCL_LIBRARY", library);
  return settings;
}

void run_with(
    detail::NcclUse use,
    bool share_a_device,
    const std::string& library,
    const std::function<void(WorldOptions)>& rank) {
  run_on_nccl_ranks(2, [&](WorldOptions options) {
    options.device =
        testing::pretend_device(share_a_device ? 0 : *options.rank);
    const auto settings = settings_with(*options.device, library);
    options.own_transport = detail::with_nccl(
        detail::make_automatic_transport(settings),
        settings,
        use,
        at::kPrivateUse1);
    rank(options);
  });
}

TEST(DeviceTransport, TakesTensorsWhereTheyLie) {
  run_with(
      detail::NcclUse::required,
      /*share_a_device=*/false,
      testing::fake_nccl_path(),
      [](const WorldOptions& options) {
        const World world(options);
        EXPECT_EQ(
            world.group().impl()->connection->facts().name,
            "shared_memory+nccl");
        const at::Tensor host = torch::full({3}, world.rank() + 1);
        const at::Tensor device = on(world, host.clone());
        world.group().all_reduce(host);
        world.group().all_reduce(device);
        EXPECT_TRUE(torch::equal(host, torch::full({3}, 3)));
        expect_values(device, torch::full({3}, 3));
        // Parts on the host, for a tensor on a device.
        const std::vector<at::Tensor> parts{
            torch::zeros({3}, at::kLong), torch::ones({3}, at::kLong)};
        world.group().scatter(device, parts, 0);
        expect_values(device, torch::full({3}, world.rank()));
      });
}

TEST(DeviceTransport, RefusesRanksThatShareADeviceOrLackNccl) {
  const auto refuse = [](bool share,
                         const std::string& library,
                         const std::string& why) {
    run_with(
        detail::NcclUse::required, share, library, [&](WorldOptions options) {
          expect_error<ConfigError>([&] { World{options}; }, why);
        });
  };
  refuse(
      true,
      testing::fake_nccl_path(),
      "[comm] each rank must have a device of its own, but ranks 0 and 1 share "
      "one");
  expect_error<ConfigError>(
      [&] { refuse(false, "/no/such/libnccl.so.2", ""); },
      "/no/such/libnccl.so.2");
}

// Transports of two ranks, made one after the other.
std::vector<std::shared_ptr<detail::Transport>> transports_with(
    const std::vector<std::string>& libraries,
    const std::vector<int>& versions) {
  std::vector<std::shared_ptr<detail::Transport>> made;
  for (std::size_t rank = 0; rank < libraries.size(); ++rank) {
    const FakeNcclFaultScope faults({.version = versions[rank]});
    const auto settings = settings_with(
        testing::pretend_device(static_cast<int>(rank)), libraries[rank]);
    made.push_back(detail::with_nccl(
        detail::make_automatic_transport(settings),
        settings,
        detail::NcclUse::if_possible,
        at::kPrivateUse1));
  }
  return made;
}

TEST(DeviceTransport, NeedsOneVersionOnAllRanks) {
  std::mutex mutex;
  const auto warning_with = [&](const std::vector<std::string>& libraries,
                                const std::vector<int>& versions) {
    const auto transports = transports_with(libraries, versions);
    std::string warnings;
    run_on_nccl_ranks(2, [&](WorldOptions options) {
      options.own_transport =
          transports[static_cast<std::size_t>(*options.rank)];
      options.logger = Logger(
          [&](const LogRecord& record) {
            const std::lock_guard lock(mutex);
            warnings += record.message;
          },
          LogLevel::warning);
      const World world(options);
      const at::Tensor value = on(world, torch::full({3}, 1));
      world.group().all_reduce(value);
      expect_values(value, torch::full({3}, 2));
    });
    return warnings;
  };
  const std::string fake = testing::fake_nccl_path();
  const std::string beginning =
      "group \"world\": tensors on devices travel through host memory: ";
  EXPECT_EQ(
      warning_with({fake, fake}, {22809, 22703}),
      beginning +
          "the ranks must have the same version of NCCL, but rank 0 has "
          "2.28.9, and rank 1 has 2.27.3");
  EXPECT_EQ(
      warning_with({fake, "/no/such/libnccl.so.2"}, {22809, 0}),
      beginning + "rank 1 has no NCCL");
}

TEST(NcclLibrary, NamesItsVariablesInErrors) {
  const FakeNcclFaultScope faults({.fails_to_connect = true});
  run_on_nccl_ranks(2, [](WorldOptions options) {
    auto settings = settings_with(*options.device, testing::fake_nccl_path());
    settings.environment.set("NCCL_SOCKET_IFNAME", "nonsense");
    options.own_transport = detail::with_nccl(
        detail::make_automatic_transport(settings),
        settings,
        detail::NcclUse::required,
        at::kPrivateUse1);
    const World world(options);
    expect_error<DistributedError>(
        [&] { world.group().all_reduce(on(world, torch::ones({2}))); },
        "; its variables are NCCL_SOCKET_IFNAME=nonsense");
  });
}

TEST(DeviceTransport, FallsBackToHostMemoryWithOneWarning) {
  std::mutex mutex;
  std::vector<std::string> warnings;
  const auto fall_back = [&](bool share, const std::string& library) {
    warnings.clear();
    run_with(
        detail::NcclUse::if_possible,
        share,
        library,
        [&](WorldOptions options) {
          options.logger = Logger(
              [&](const LogRecord& record) {
                const std::lock_guard lock(mutex);
                warnings.emplace_back(record.message);
              },
              LogLevel::warning);
          const World world(options);
          const Group other = world.new_group({0, 1});
          const at::Tensor value = on(world, torch::full({3}, 1));
          other.all_reduce(value);
          expect_values(value, torch::full({3}, 2));
        });
    ASSERT_EQ(warnings.size(), 1U);
  };
  fall_back(true, testing::fake_nccl_path());
  EXPECT_EQ(
      warnings.front(),
      "group \"world\": tensors on devices travel through host memory: each "
      "rank must have a device of its own, but ranks 0 and 1 share one");
  fall_back(false, "/no/such/libnccl.so.2");
  EXPECT_NE(
      warnings.front().find("ACCELERATE_NCCL_LIBRARY"), std::string::npos);
}

}  // namespace nccl_test
}  // namespace accelerate
