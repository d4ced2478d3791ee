#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <mutex>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "comm/group/begun_exchange.h"
#include "comm/group/group_impl.h"
#include "support/memory_worlds.h"

namespace accelerate::detail {
namespace reducible_memory_test {

using testing::run_in_memory_worlds;
using testing::run_on_machines;

Connection& connection_of(const World& world) {
  return *world.group().impl()->connection;
}

// Values whose sums depend on the order of addition.
at::Tensor values_of(int rank, std::int64_t count, at::ScalarType dtype) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<std::uint64_t>(500 + rank));
  return (torch::randn({count}, generator, torch::dtype(torch::kDouble)) *
          std::pow(4.0, rank))
      .to(dtype);
}

at::Tensor
sum_in_order(int num_ranks, std::int64_t count, at::ScalarType dtype) {
  at::Tensor sum = values_of(0, count, dtype).to(at::kFloat);
  for (int rank = 1; rank < num_ranks; ++rank)
    sum = sum + values_of(rank, count, dtype).to(at::kFloat);
  return sum.to(dtype);
}

// Ranks below `num_sharing` have their values in reducible memory, the others
// elsewhere.
void expect_exact_sums(int num_ranks, int num_sharing) {
  run_in_memory_worlds(num_ranks, [&](const World& world) {
    for (const std::int64_t count : {20'000, 65'536, 65'537, 300'000}) {
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const at::Tensor memory =
            connection_of(world).reducible_memory(4 * (count + 16));
        ASSERT_TRUE(memory.defined());
        EXPECT_EQ(memory.numel(), 4 * (count + 16));
        // At a different offset on each rank.
        const at::Tensor there =
            memory.view(dtype).narrow(0, 4 * world.rank(), count);
        const bool is_sharing = world.rank() < num_sharing;
        const at::Tensor values =
            is_sharing ? there : torch::empty({count}, dtype);
        for (int round = 0; round < 2; ++round) {
          values.copy_(values_of(world.rank(), count, dtype));
          world.group().all_reduce(values);
          EXPECT_TRUE(
              torch::equal(values, sum_in_order(num_ranks, count, dtype)))
              << count << " " << dtype;
        }
      }
    }
  });
}

TEST(ReducibleMemory, ReducesWhereTheValuesLie) {
  for (const int num_ranks : {2, 3, 5}) expect_exact_sums(num_ranks, num_ranks);
}

TEST(ReducibleMemory, ReducesIfOnlySomeRanksUseIt) {
  expect_exact_sums(2, 1);
  expect_exact_sums(4, 2);
}

TEST(ReducibleMemory, StaysUntilAllRanksHaveReleasedIt) {
  run_in_memory_worlds(2, [](const World& world) {
    constexpr std::int64_t kCount = 100'000;
    Connection& connection = connection_of(world);
    at::Tensor first = connection.reducible_memory(4 * kCount);
    // Rank 0 drops its memory, while rank 1 goes on using its own.
    if (world.rank() == 0) first.reset();
    const at::Tensor second = connection.reducible_memory(4 * kCount);
    const at::Tensor value = (world.rank() == 0 ? second : first)
                                 .view(at::kFloat)
                                 .fill_(world.rank() + 1);
    world.group().all_reduce(value);
    EXPECT_TRUE(torch::equal(value, torch::full({kCount}, 3.0F)));
  });
}

TEST(ReducibleMemory, IsUnavailableAcrossMachines) {
  run_on_machines({2, 1}, [](const World& world) {
    EXPECT_FALSE(connection_of(world).reducible_memory(1 << 20).defined());
  });
}

// Makes one rank's network at a time, since the threads share a generator.
torch::nn::Sequential network() {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  torch::manual_seed(5);
  return torch::nn::Sequential(
      torch::nn::Linear(300, 400),
      torch::nn::ReLU(),
      torch::nn::Linear(400, 300),
      torch::nn::Linear(300, 7));
}

struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> gradients;
};

std::vector<Trained>
train(const std::string& transport, bool as_views, bool keeps_gradients) {
  std::vector<Trained> all(2);
  testing::run_on_ranks(2, [&](WorldOptions world) {
    world.transport = transport;
    world.own_transport = nullptr;
    Accelerator accelerator(
        {.parallel =
             {.replicate_options =
                  {.bucket_bytes = 200'000,
                   .gradient_as_bucket_view = as_views}},
         .world = world});
    auto net = network();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    auto generator = at::detail::createCPUGenerator(
        static_cast<std::uint64_t>(accelerator.process_index()));
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = torch::randn({8, 300}, generator, at::kFloat);
      optimizer.zero_grad(/*set_to_none=*/!keeps_gradients);
      accelerator.backward(model(x).pow(2).mean());
      optimizer.step();
    }
    Trained& own = all[static_cast<std::size_t>(accelerator.process_index())];
    for (const at::Tensor& parameter : net->parameters()) {
      own.parameters.push_back(parameter.detach().clone());
      own.gradients.push_back(parameter.grad().clone());
    }
  });
  return all;
}

// Sums of two ranks are exact in either order.
TEST(ReducibleMemory, TrainsReplicasAsSlotsDo) {
  for (const bool as_views : {false, true}) {
    for (const bool keeps_gradients : {false, true}) {
      const auto ours = train("shared_memory", as_views, keeps_gradients);
      const auto theirs = train("gloo", as_views, keeps_gradients);
      for (std::size_t rank = 0; rank < 2; ++rank) {
        for (std::size_t i = 0; i < ours[rank].parameters.size(); ++i) {
          EXPECT_TRUE(torch::equal(
              ours[rank].parameters[i], theirs[rank].parameters[i]));
          EXPECT_TRUE(
              torch::equal(ours[rank].gradients[i], theirs[rank].gradients[i]));
        }
      }
    }
  }
}

TEST(ForkedProcess, LeavesItsParentsConnectionAlone) {
  run_in_memory_worlds(2, [](const World& world) {
    Connection& connection = connection_of(world);
    auto memory =
        std::make_unique<at::Tensor>(connection.reducible_memory(1 << 20));
    // Starts a helper thread, which the child does not have.
    connection.all_reduce(torch::ones({100'000}), ReduceOp::sum)
        ->getFuture()
        ->wait();
    world.group().barrier();
    if (world.rank() == 0) {
      // In the child it is the only owner when it drops the connection.
      auto held = std::make_unique<Group>(world.group());
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        memory.reset();
        const_cast<std::shared_ptr<Connection>&>(held->impl()->connection)
            .reset();
        ::_exit(0);
      }
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0);
    }
    const at::Tensor value = memory->view(at::kFloat).fill_(world.rank() + 1);
    world.group().all_reduce(value);
    EXPECT_EQ(value[1000].item<float>(), 3);
    world.group().barrier();
  });
}

// Messages of an abandoned exchange are kept while a peer may use them.
TEST(BegunExchangeMemory, IsKeptOnlyUntilMessagesAreDone) {
  run_in_memory_worlds(2, [](const World& world) {
    const int peer = 1 - world.rank();
    const UnfinishedWorks& unfinished = world.group().impl()->unfinished;
    for (int round = 0; round < 20; ++round) {
      const at::Tensor received = torch::empty({10'000});
      std::vector<PeerMessage> receives;
      if (round % 2 == 0) receives.push_back({received, peer, 1});
      static_cast<void>(BegunExchange::messages(
          world.group(),
          "given up",
          {{torch::full({10'000}, round, at::kFloat), peer, 1}},
          receives));
      if (round % 2 == 1) world.group().recv(received, peer, 1);
      world.group().barrier();
    }
    // At most the messages of the last rounds; the others are done.
    EXPECT_LE(unfinished.count(), 4U);
  });
}

}  // namespace reducible_memory_test
}  // namespace accelerate::detail
