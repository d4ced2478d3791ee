#include "comm/transport/transport.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/error.h>

#include "comm/group/group_impl.h"
#include "comm/transport/adapters/adapters.h"
#include "comm/transport/adapters/connection_adapter.h"
#include "comm/transport/transports.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/thread_transport.h"

namespace accelerate::detail {
namespace transport_test {

using testing::expect_error;
using testing::make_thread_transport;
using testing::run_on_ranks;

// Runs `body` on connected threads, without a World.
template <class Body>
void run_connected(int num_ranks, Body body) {
  const auto transport = make_thread_transport();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_on_ranks(num_ranks, [&](const WorldOptions& options) {
    std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
    for (int i = 0; i < num_ranks; ++i) ranks[static_cast<std::size_t>(i)] = i;
    const auto connection = transport->connect(
        {.store = store,
         .name = "test",
         .rank = *options.rank,
         .world_ranks = ranks,
         .timeout = std::chrono::seconds(20)});
    body(connection);
  });
}

template <class Body>
void run_in_thread_worlds(int num_ranks, Body body) {
  const auto transport = make_thread_transport();
  run_on_ranks(num_ranks, [&](WorldOptions options) {
    options.own_transport = transport;
    body(World(options));
  });
}

at::Tensor bytes_of(const std::vector<int>& values) {
  return at::tensor(values, at::kInt).to(at::kByte);
}

// The signals that each thread of this process blocks, one bit per signal.
std::map<std::string, std::uint64_t> blocked_signals() {
  std::map<std::string, std::uint64_t> found;
  for (const auto& thread :
       std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    std::string line;
    while (std::getline(status, line)) {
      if (line.starts_with("SigBlk:"))
        found[thread.path().filename().string()] =
            std::stoull(line.substr(7), nullptr, 16);
    }
  }
  return found;
}

TEST(Transports, GlooDoesNotEndTheProcessWhenAPeerIsGone) {
  constexpr std::uint64_t kPipe = std::uint64_t{1} << (SIGPIPE - 1);
  const auto before = blocked_signals();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  TransportSettings settings;
  settings.is_single_node = true;
  const auto transport = choose_transport("gloo").make(settings);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto connection = transport->connect(
          {.store = store,
           .name = "test",
           .rank = rank,
           .world_ranks = {0, 1},
           .timeout = std::chrono::seconds(20)});
      connection->barrier()->wait();
      const std::uint64_t own =
          blocked_signals().at(std::to_string(::gettid()));
      EXPECT_EQ(own & kPipe, 0U);
      if (rank == 1) return;
      int num_others = 0;
      for (const auto& [thread, signals] : blocked_signals()) {
        if (before.contains(thread) || (signals & kPipe) == 0) continue;
        ++num_others;
      }
      // One thread that waits for the sockets, and those that compute.
      EXPECT_GE(num_others, 2);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Transports, AreChosenByNameOrTheBestByDefault) {
  EXPECT_EQ(choose_transport(std::nullopt).name, "automatic");
  EXPECT_EQ(choose_transport("gloo").name, "gloo");
  EXPECT_EQ(choose_transport("shared_memory").name, "shared_memory");
  expect_error<ConfigError>(
      [] { choose_transport("pigeons"); },
      "[comm] the transport \"pigeons\" is not available in this build or on "
      "this machine; use automatic, shared_memory, gloo, nccl");
  // The name is checked on a single rank, too.
  expect_error<ConfigError>(
      [] { World({.transport = "pigeons"}); }, "\"pigeons\"");
  run_on_ranks(2, [](WorldOptions options) {
    options.transport = "gloo";
    options.own_transport = nullptr;
    const World world(options);
    const at::Tensor value = torch::ones({2});
    world.group().all_reduce(value);
    EXPECT_EQ(value.sum().item<double>(), 4);
  });
}

// Gloo itself would wait for messages only as long as for connections.
TEST(Transports, WaitForMessagesAsLongAsTheWorldSays) {
  constexpr std::chrono::milliseconds kLongerThanForConnections{5'500};
  run_on_ranks(2, [&](WorldOptions options) {
    options.transport = "gloo";
    options.own_transport = nullptr;
    options.timeout = std::chrono::seconds(300);
    const World world(options);
    Connection& connection = *world.group().impl()->connection;
    const at::Tensor value = torch::full({3}, world.rank());
    if (world.rank() == 0) {
      connection.receive(value, 1, 0)->wait();
      EXPECT_EQ(value.sum().item<int>(), 3);
    } else {
      std::this_thread::sleep_for(kLongerThanForConnections);
      connection.send(value, 0, 0)->wait();
    }
    world.group().barrier();
  });
}

TEST(Transports, MayBeThoseOfTheProgram) {
  const auto name_with = [](const std::shared_ptr<Transport>& own) {
    std::string name;
    run_on_ranks(2, [&](WorldOptions options) {
      options.own_transport = own;
      const World world(options);
      if (world.rank() == 0)
        name = world.group().impl()->connection->facts().name;
    });
    return name;
  };
  EXPECT_EQ(name_with(make_thread_transport()), "threads");
  EXPECT_EQ(name_with(nullptr), "shared_memory");
}

TEST(Transports, ReportTheirCapabilities) {
  const auto gloo = choose_transport("gloo").make({});
  EXPECT_EQ(gloo->facts().name, "gloo");
  EXPECT_TRUE(gloo->facts().has_device(at::kCPU));
  EXPECT_FALSE(gloo->facts().has_device(at::kCUDA));
  EXPECT_EQ(gloo->facts().point_to_point, PointToPoint::tagged);
  EXPECT_TRUE(gloo->facts().can_reduce(at::kBFloat16, ReduceOp::max));
  EXPECT_TRUE(gloo->facts().can_reduce(at::kInt, ReduceOp::bit_xor));
  EXPECT_FALSE(gloo->facts().can_reduce(at::kFloat, ReduceOp::mean));
  EXPECT_FALSE(gloo->facts().can_reduce(at::kShort, ReduceOp::sum));
  EXPECT_FALSE(gloo->facts().can_reduce(at::kBool, ReduceOp::sum));
  const auto threads = make_thread_transport();
  EXPECT_EQ(threads->facts().point_to_point, PointToPoint::ordered);
  EXPECT_FALSE(threads->facts().can_reduce(at::kHalf, ReduceOp::sum));
}

TEST(Transports, RecognizeTheirOwnFailures) {
  const auto gloo = choose_transport("gloo").make({});
  const auto says = [&](const char* text) {
    return gloo->describe_failure(std::runtime_error(text));
  };
  EXPECT_EQ(
      says("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] x\nat y"),
      "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:1] x");
  EXPECT_EQ(says("Timed out waiting 500ms"), "Timed out waiting 500ms");
  EXPECT_EQ(says("Connection closed by peer"), "Connection closed by peer");
  EXPECT_EQ(says("sizes of tensors must match"), std::nullopt);
  const auto threads = make_thread_transport();
  EXPECT_EQ(
      threads->describe_failure(std::runtime_error("Timed out waiting")),
      std::nullopt);
}

const std::vector<at::ScalarType> kWidened{
    at::kByte,
    at::kChar,
    at::kShort,
    at::kUInt16,
    at::kUInt32,
    at::kUInt64,
    at::kHalf,
    at::kBFloat16,
    at::kComplexFloat,
    at::kComplexDouble,
    at::kFloat8_e4m3fn};

TEST(DtypeWidening, ReducesWhatTheTransportCannot) {
  run_in_thread_worlds(3, [](const World& world) {
    const auto reduced = [&](at::ScalarType dtype, ReduceOp op) {
      const at::Tensor value =
          torch::full({2, 3}, world.rank() + 1, at::kLong).to(dtype);
      world.group().all_reduce(value, op);
      EXPECT_EQ(value.scalar_type(), dtype);
      return value.to(at::kDouble)[1][2].item<double>();
    };
    for (const at::ScalarType dtype : kWidened) {
      const char* const name = c10::toString(dtype);
      EXPECT_EQ(reduced(dtype, ReduceOp::sum), 6) << name;
      if (c10::isIntegralType(dtype, false)) {
        EXPECT_EQ(reduced(dtype, ReduceOp::bit_xor), 0) << name;
        EXPECT_EQ(reduced(dtype, ReduceOp::bit_or), 3) << name;
      } else {
        EXPECT_EQ(reduced(dtype, ReduceOp::mean), 2) << name;
      }
      if (c10::isComplexType(dtype)) continue;
      EXPECT_EQ(reduced(dtype, ReduceOp::product), 6) << name;
      EXPECT_EQ(reduced(dtype, ReduceOp::min), 1) << name;
      EXPECT_EQ(reduced(dtype, ReduceOp::max), 3) << name;
    }
  });
}

TEST(DtypeWidening, KeepsUnsignedOrderAndTruth) {
  run_in_thread_worlds(2, [](const World& world) {
    const std::uint64_t large = 0x8000000000000001;
    const at::Tensor value =
        torch::full({1}, world.rank() == 0 ? 1 : 0, at::kLong);
    if (world.rank() == 1) value.fill_(static_cast<std::int64_t>(large));
    const at::Tensor order = value.view(at::kUInt64);
    world.group().all_reduce(order, ReduceOp::max);
    EXPECT_EQ(value.item<std::int64_t>(), static_cast<std::int64_t>(large));

    const at::Tensor truth = torch::tensor({world.rank() == 0, true, false});
    const auto after = [&](ReduceOp op) {
      const at::Tensor copy = truth.clone();
      world.group().all_reduce(copy, op);
      return copy;
    };
    EXPECT_TRUE(
        torch::equal(after(ReduceOp::sum), torch::tensor({true, true, false})));
    EXPECT_TRUE(torch::equal(
        after(ReduceOp::product), torch::tensor({false, true, false})));
    EXPECT_TRUE(torch::equal(
        after(ReduceOp::bit_xor), torch::tensor({true, false, false})));
  });
}

TEST(DtypeWidening, ReducesToOneRankAndInShards) {
  run_in_thread_worlds(2, [](const World& world) {
    const at::Tensor value = torch::full({3}, world.rank() + 1, at::kHalf);
    world.group().reduce(value, 1, ReduceOp::mean);
    EXPECT_EQ(value[0].item<double>(), world.rank() == 1 ? 1.5 : 1);
    const at::Tensor all = torch::arange(8).view({4, 2}).to(at::kBFloat16);
    const at::Tensor mine = world.group().reduce_scatter(all, ReduceOp::mean);
    EXPECT_TRUE(torch::equal(mine, all.narrow(0, 2 * world.rank(), 2)));
    const at::Tensor floats = torch::arange(8.0).view({2, 4}).t();
    EXPECT_TRUE(torch::equal(
        world.group().reduce_scatter(floats, ReduceOp::mean),
        floats.narrow(0, 2 * world.rank(), 2)));
  });
}

// A connection that can reduce 64-bit integers only.
class IntegersOnly final : public ConnectionAdapter {
 public:
  explicit IntegersOnly(std::shared_ptr<Connection> inner)
      : ConnectionAdapter(std::move(inner)) {
    facts_.name = "integers";
    facts_.can_reduce = [](at::ScalarType dtype, ReduceOp op) {
      return dtype == at::kLong && op == ReduceOp::sum;
    };
    facts_.point_to_point = PointToPoint::none;
  }
  Work send(const at::Tensor& tensor, int dst, int tag) override {
    return Connection::send(tensor, dst, tag);
  }
};

TEST(DtypeWidening, RefusesWhereNoDtypeIsWideEnough) {
  run_connected(2, [](const std::shared_ptr<Connection>& connection) {
    const auto adapter = adapted(std::make_shared<IntegersOnly>(connection));
    const at::Tensor value = torch::full({2}, 200, at::kByte);
    adapter->all_reduce(value, ReduceOp::sum)->wait();
    EXPECT_EQ(value[0].item<int>(), 400 - 256);
    expect_error<ConfigError>(
        [&] { adapter->all_reduce(torch::ones({2}), ReduceOp::sum); },
        "the transport \"integers\" cannot reduce Float values with sum");
    expect_error<ConfigError>(
        [&] { adapter->send(value, 1 - adapter->rank(), 0); },
        "has no point-to-point messages");
  });
}

TEST(Adapters, MoveViewsIntoPlace) {
  run_in_thread_worlds(2, [](const World& world) {
    const at::Tensor base = torch::zeros({4, 6}, at::kShort);
    const at::Tensor view = base.t().slice(0, 0, 6, 2);
    if (world.rank() == 0) view.fill_(7);
    world.group().broadcast(view, 0);
    EXPECT_EQ(base.sum().item<int>(), 7 * 12);
    std::vector<at::Tensor> inputs{view + 1, view + 2};
    world.group().scatter(view, inputs, 0);
    EXPECT_EQ(base.sum().item<int>(), (8 + world.rank()) * 12);
    if (world.rank() == 0) {
      world.group().send(view, 1, 3);
    } else {
      world.group().recv(view, 0, 3);
      EXPECT_EQ(base.sum().item<int>(), 8 * 12);
    }
  });
}

TEST(TagMatching, MatchesMessagesByTagInOrder) {
  run_connected(2, [](const std::shared_ptr<Connection>& connection) {
    const auto tagged = match_tags(connection);
    EXPECT_EQ(tagged->facts().point_to_point, PointToPoint::tagged);
    const int peer = 1 - tagged->rank();
    tagged->send(bytes_of({1}), peer, 1)->wait();
    tagged->send(bytes_of({2, 2}), peer, 2)->wait();
    tagged->send(bytes_of({3}), peer, 1)->wait();
    const at::Tensor first = bytes_of({0}), second = bytes_of({0, 0}),
                     third = bytes_of({0});
    // Tag 2 is received first: the message before it is kept.
    const Work of_second = tagged->receive(second, peer, 2);
    of_second->wait();
    EXPECT_TRUE(at::equal(second, bytes_of({2, 2})));
    const Work of_first = tagged->receive(first, peer, 1);
    const Work of_third = tagged->receive(third, peer, 1);
    EXPECT_TRUE(of_first->isCompleted());
    of_third->wait();
    of_first->wait();
    EXPECT_TRUE(at::equal(first, bytes_of({1})));
    EXPECT_TRUE(at::equal(third, bytes_of({3})));
  });
}

TEST(TagMatching, RefusesAMessageOfAnotherSize) {
  run_connected(2, [](const std::shared_ptr<Connection>& connection) {
    const auto tagged = match_tags(connection);
    const int peer = 1 - tagged->rank();
    tagged->send(bytes_of({1, 2, 3}), peer, 9)->wait();
    expect_error<std::runtime_error>(
        [&] { tagged->receive(bytes_of({0}), peer, 9)->wait(); },
        "a message with tag 9 has 3 bytes where 1 are expected");
  });
}

// A connection that can hold ranks inside its barriers.
class HeldConnection final : public ConnectionAdapter {
 public:
  using ConnectionAdapter::ConnectionAdapter;
  Work barrier() override {
    has_begun.set_value();
    may_end.get_future().wait();
    return inner().barrier();
  }
  std::promise<void> has_begun, may_end;
};

TEST(ConcurrencyCheck, RefusesASecondThreadWhileOneIsInACall) {
  run_connected(1, [](const std::shared_ptr<Connection>& connection) {
    const auto held = std::make_shared<HeldConnection>(connection);
    const auto checked = refuse_concurrent_calls(held);
    std::thread other([&] { checked->barrier()->wait(); });
    held->has_begun.get_future().wait();
    const at::Tensor values = torch::ones({2});
    expect_error<DistributedError>(
        [&] { checked->all_reduce(values, ReduceOp::sum); },
        "two threads of rank 0 use one group at once");
    held->may_end.set_value();
    other.join();
    checked->all_reduce(values, ReduceOp::sum)->wait();
    EXPECT_TRUE(at::equal(values, torch::ones({2})));
  });
}

TEST(ThreadTransport, FailsWaitsForARankThatLeft) {
  std::string collective, message;
  run_in_thread_worlds(3, [&](const World& world) {
    if (world.rank() == 2) return;
    const auto wait = [&](const std::function<void()>& body) {
      try {
        body();
      } catch (const DistributedError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    if (world.rank() == 0) {
      collective = wait([&] { world.group().all_reduce(torch::ones({2})); });
    } else {
      message = wait([&] { world.group().recv(torch::ones({2}), 2); });
    }
  });
  EXPECT_THAT(collective, ::testing::HasSubstr("all_reduce number 1"));
  EXPECT_THAT(
      collective, ::testing::HasSubstr("ended or closed the connection"));
  EXPECT_THAT(message, ::testing::HasSubstr("recv"));
}

TEST(ProcessGroup, CarriesReducersTrafficOverAnyConnection) {
  run_connected(3, [](const std::shared_ptr<Connection>& connection) {
    const auto group = as_process_group(
        adapted(connection), c10::make_intrusive<c10d::HashStore>(), nullptr);
    std::vector<at::Tensor> half{torch::full({4}, group->getRank(), at::kHalf)};
    const auto future = group->allreduce(half)->getFuture();
    future->waitAndThrow();
    EXPECT_EQ(future->value().toTensorVector()[0][3].item<double>(), 3);
    EXPECT_EQ(half[0][0].item<double>(), 3);

    const std::vector<at::Tensor> tensors{
        torch::full({2}, group->getRank()),
        torch::full({3}, group->getRank() + 0.5)};
    c10d::broadcast_coalesced(group, tensors, 1 << 20, 1);
    EXPECT_EQ(tensors[0][1].item<int>(), 1);
    EXPECT_EQ(tensors[1][2].item<double>(), 1.5);
    group->barrier()->wait();
  });
}

}  // namespace transport_test
}  // namespace accelerate::detail
