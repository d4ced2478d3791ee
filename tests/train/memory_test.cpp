#include <accelerate/accelerate.h>
#include <accelerate/memory.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace memory_test {

using testing::expect_error;
using testing::run_on_ranks;

// Makes LibTorch run out of memory by asking for more than any machine has.
void take_too_much() { torch::empty({std::int64_t{1} << 58}); }

TEST(OutOfMemory, IsDistinguishedFromOtherErrors) {
  const auto is_oom = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      return is_out_of_memory(error);
    }
    ADD_FAILURE() << "nothing was thrown";
    return false;
  };
  EXPECT_TRUE(is_oom(take_too_much));
  EXPECT_TRUE(is_oom([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(is_oom([] {
    throw std::runtime_error("CUDA out of memory. Tried to allocate");
  }));
  EXPECT_FALSE(is_oom([] { throw std::runtime_error("shape mismatch"); }));
  EXPECT_FALSE(is_oom([] { throw std::logic_error("CUDA out of memory."); }));
  EXPECT_FALSE(is_oom([] { torch::ones({2, 3}).matmul(torch::ones({2, 3})); }));
}

TEST(BatchSizeSearch, GoesDownUntilItFitsAndKeepsWhatItFound) {
  std::vector<std::int64_t> tried;
  BatchSizeSearch search(
      {.starting_batch_size = 100, .reduce_batch_size = halve});
  const auto train = [&](std::int64_t batch_size) {
    tried.push_back(batch_size);
    if (batch_size > 30) take_too_much();
    return batch_size * 2;
  };
  EXPECT_EQ(search(train), 50);
  EXPECT_EQ(search(train), 50);
  EXPECT_EQ(tried, (std::vector<std::int64_t>{100, 50, 25, 25}));
  EXPECT_EQ(search.batch_size(), 25);
}

TEST(BatchSizeSearch, PassesOtherErrorsAndReportsThatNothingFits) {
  BatchSizeSearch search({.starting_batch_size = 4});
  expect_error<std::logic_error>(
      [&] { search([](std::int64_t) { throw std::logic_error("mine"); }); },
      "mine");
  EXPECT_EQ(search.batch_size(), 4);
  expect_error<Error>(
      [&] { search([](std::int64_t) { take_too_much(); }); },
      "no batch size works");
  expect_error<ConfigError>(
      [&] {
        find_executable_batch_size(
            [](std::int64_t) { take_too_much(); },
            {.starting_batch_size = 4,
             .reduce_batch_size = [](std::int64_t size) { return size; }});
      },
      "must return less");
}

// Ten bytes per sample on top of a hundred, fewer if recomputed or sharded.
MemoryPlan plan_of_samples() {
  return {
      {.num_ranks = 2, .num_local_ranks = 2, .batch_size = 64},
      [](const MemoryCase& at) {
        const auto samples = static_cast<std::uint64_t>(at.micro_batch);
        return MemoryRow{
            .weights = at.split == MemorySplit::full_shard ? 50U : 100U,
            .activations = samples * (at.recomputes ? 5U : 10U) /
                (at.precision == FloatType::fp32 ? 1U : 2U)};
      }};
}

TEST(BatchSizeSearch, BeginsAtThePlan) {
  const MemoryPlan plan = plan_of_samples();
  const auto first = [&](const PlannedSearch& search) {
    std::vector<std::int64_t> tried;
    find_executable_batch_size(
        [&](std::int64_t batch_size) {
          tried.push_back(batch_size);
          if (tried.size() == 1) take_too_much();
        },
        search_from_plan(plan, search));
    EXPECT_EQ(tried.size(), 2U);
    return tried.front();
  };
  EXPECT_EQ(first({.memory = 400}), 30);
  EXPECT_EQ(first({.split = MemorySplit::full_shard, .memory = 400}), 35);
  EXPECT_EQ(first({.recomputes = true, .memory = 300}), 40);
  EXPECT_EQ(first({.precision = FloatType::bf16, .memory = 300}), 40);
  // The full batch fits in the memory that is free now.
  EXPECT_EQ(first({}), 64);
  expect_error<ConfigError>(
      [&] {
        static_cast<void>(
            search_from_plan(plan, {.split = MemorySplit::hybrid_shard}));
      },
      "hybrid shard");
  run_on_ranks(2, [&](const WorldOptions& options) {
    World world(options);
    const auto search = search_from_plan(
        plan,
        {.memory = world.rank() == 0 ? 400 : 300, .group = world.group()});
    EXPECT_EQ(search.starting_batch_size, 20);
    EXPECT_TRUE(search.group.has_value());
  });
}

TEST(BatchSizeSearch, AgreesOverTheRanks) {
  std::vector<std::int64_t> found(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    const int rank = accelerator.process_index();
    found[static_cast<std::size_t>(rank)] = find_executable_batch_size(
        [&](std::int64_t batch_size) {
          if (batch_size > 64 >> rank) take_too_much();
          return batch_size;
        },
        {.starting_batch_size = 64,
         .reduce_batch_size = halve,
         .group = accelerator.world().group()});
  });
  EXPECT_EQ(found, (std::vector<std::int64_t>{16, 16, 16}));
}

// An identity whose backward runs out of memory.
struct FailInBackward : torch::autograd::Function<FailInBackward> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext*,
      const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      torch::autograd::variable_list gradients) {
    take_too_much();
    return gradients;
  }
};

TEST(BatchSizeSearch, ShrinksOnAllRanksIfOneRunsOutOfMemoryInABackward) {
  std::vector<std::int64_t> found(3);
  std::vector<std::vector<std::int64_t>> tried(3);
  run_on_ranks(3, [&](const WorldOptions& options) {
    const World world(options);
    const auto rank = static_cast<std::size_t>(world.rank());
    found[rank] = find_executable_batch_size(
        [&](std::int64_t batch_size, const WorldOptions& of_try) {
          tried[rank].push_back(batch_size);
          Accelerator accelerator({.journal = false, .world = of_try});
          torch::nn::Linear net(4, 4);
          auto model = accelerator.prepare(net);
          auto y = model(torch::ones({batch_size, 4}));
          if (rank == 1 && batch_size > 20) y = FailInBackward::apply(y);
          accelerator.backward(y.sum());
          // The average over all ranks has arrived.
          EXPECT_EQ(
              net->bias.grad()[0].item<float>(),
              static_cast<float>(batch_size));
          return batch_size;
        },
        {.starting_batch_size = 64,
         .reduce_batch_size = halve,
         .group = world.group()});
    // The search's own group still works.
    world.wait_for_everyone();
  });
  EXPECT_EQ(found, (std::vector<std::int64_t>{16, 16, 16}));
  for (const auto& sizes : tried)
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{64, 32, 16}));
}

TEST(BatchSizeSearch, PassesTheErrorOfALostPeerThatDidNotRunOutOfMemory) {
  run_on_ranks(2, [&](const WorldOptions& options) {
    const World world(options);
    expect_error<DistributedError>(
        [&] {
          find_executable_batch_size(
              [&](std::int64_t, const WorldOptions& of_try) {
                const World inner(of_try);
                throw DistributedError("a peer is gone");
              },
              {.group = world.group()});
        },
        "a peer is gone");
  });
}

TEST(ReleaseMemory, EmptiesWhatItIsGiven) {
  torch::Tensor tensor = torch::ones({1000});
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(tensor.getIntrusivePtr());
  auto net = std::make_shared<torch::nn::LinearImpl>(3, 4);
  torch::nn::Linear holder(3, 4);
  std::vector<torch::Tensor> list{tensor, tensor};
  release_memory(tensor, net, holder, list);
  EXPECT_TRUE(weak.expired());
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(net, nullptr);
  EXPECT_TRUE(list.empty());
}

}  // namespace memory_test
}  // namespace accelerate
