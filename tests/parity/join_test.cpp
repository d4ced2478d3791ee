// Ranks with different numbers of batches train as one process would.
#include <map>
#include <mutex>

#include <accelerate/accelerate.h>
#include <accelerate/local_sgd.h>
#include <accelerate/schedulers.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace join_test {

using testing::expect_error;
using testing::run_on_ranks;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return fc2(torch::tanh(fc1(x)));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(3, 5));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(5, 2));
};
TORCH_MODULE(Net);

void fill(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  std::int64_t seed = 0;
  for (auto& parameter : net.parameters()) {
    const auto values = torch::arange(parameter.numel(), torch::kFloat) +
        static_cast<double>(++seed);
    parameter.copy_(torch::sin(values).view_as(parameter));
  }
}

torch::Tensor batch_of(int rank, int step) {
  return torch::cos(torch::arange(12, torch::kFloat) + 1.7 * rank + 0.3 * step)
      .view({4, 3});
}

torch::Tensor loss_of(const torch::Tensor& output) {
  return (output * output).sum(1).mean();
}

struct Case {
  std::vector<int> steps;  // by rank
  ReplicateOptions replicate = {};
  bool divide_by_all = true;
  int window = 1;
};

torch::optim::SGD make_sgd(torch::nn::Module& net) {
  return torch::optim::SGD(
      net.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
}

constexpr optim::StepLROptions kSchedule{.step_size = 2, .gamma = 0.5};

// The reference: sums the gradients of the ranks that have data, and divides.
torch::Tensor train_alone(const Case& setup) {
  Net net;
  fill(*net);
  torch::optim::SGD sgd = make_sgd(*net);
  optim::StepLR schedule(sgd, kSchedule);
  const int ranks = static_cast<int>(setup.steps.size());
  const auto take_step = [&](const std::vector<torch::Tensor>& losses) {
    const auto divisor =
        setup.divide_by_all ? ranks : static_cast<int>(losses.size());
    sgd.zero_grad();
    torch::stack(losses).sum().div(divisor).backward();
    sgd.step();
    schedule.step();
  };
  for (int step = 0;; ++step) {
    std::vector<torch::Tensor> losses;
    for (int rank = 0; rank < ranks; ++rank) {
      const int begin = step * setup.window;
      const int end = std::min(
          begin + setup.window, setup.steps[static_cast<std::size_t>(rank)]);
      if (begin >= end) continue;
      torch::Tensor sum = torch::zeros({});
      for (int i = begin; i < end; ++i)
        sum = sum + loss_of(net->forward(batch_of(rank, i)));
      losses.push_back(sum / setup.window);
    }
    if (losses.empty()) break;
    take_step(losses);
  }
  // One more step on all ranks shows differences in momentum and schedule.
  std::vector<torch::Tensor> losses;
  for (int rank = 0; rank < ranks; ++rank) {
    losses.push_back(loss_of(net->forward(batch_of(rank, 100))));
  }
  take_step(losses);
  return torch::nn::utils::parameters_to_vector(net->parameters()).detach();
}

std::vector<torch::Tensor> train_joined(
    const Case& setup,
    const LogSink& sink = {}) {
  const int ranks = static_cast<int>(setup.steps.size());
  std::vector<torch::Tensor> ends(setup.steps.size());
  run_on_ranks(ranks, [&](WorldOptions world) {
    if (sink) world.logger = Logger(sink, LogLevel::warning);
    Accelerator accelerator(
        {.gradient_accumulation_steps = setup.window,
         .parallel = {.replicate_options = setup.replicate},
         .world = world});
    Net net;
    fill(*net);
    torch::optim::SGD sgd = make_sgd(*net);
    optim::StepLR step_lr(sgd, kSchedule);
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, step_lr);
    const int rank = accelerator.process_index();
    accelerator.join_uneven_inputs(
        [&, model = model, optimizer = optimizer, scheduler = scheduler] {
          for (int step = 0; step < setup.steps[static_cast<std::size_t>(rank)];
               ++step) {
            auto micro_step = accelerator.accumulate(model);
            accelerator.backward(loss_of(model(batch_of(rank, step))));
            optimizer.step();
            scheduler.step();
            optimizer.zero_grad();
          }
        },
        {.divide_by_initial_world_size = setup.divide_by_all});
    for (int micro_step = 0; micro_step < setup.window; ++micro_step) {
      auto scope = accelerator.accumulate(model);
      accelerator.backward(loss_of(model(batch_of(rank, 100))));
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
    }
    ends[static_cast<std::size_t>(rank)] =
        torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  });
  return ends;
}

void expect_parity(const Case& setup) {
  const torch::Tensor alone = train_alone(setup);
  const std::vector<torch::Tensor> joined = train_joined(setup);
  for (const torch::Tensor& of_rank : joined) {
    EXPECT_TRUE(torch::equal(of_rank, joined[0]));
    EXPECT_TRUE(torch::allclose(of_rank, alone, 1e-5, 1e-6))
        << (of_rank - alone).abs().max().item<double>();
  }
}

TEST(JoinUnevenInputs, TrainsAsOneProcessOnAllSamples) {
  for (const bool divide_by_all : {true, false}) {
    for (const auto& steps : std::vector<std::vector<int>>{
             {4, 4},
             {1, 5},
             {5, 1},
             {0, 3},
             {3, 0},
             {0, 0},
             {2, 0, 5},
             {3, 3, 1},
             {6}}) {
      SCOPED_TRACE(steps.size());
      expect_parity({.steps = steps, .divide_by_all = divide_by_all});
    }
  }
}

TEST(JoinUnevenInputs, HoldsForEveryWayToReplicate) {
  const std::vector<int> steps{1, 4, 2};
  SCOPED_TRACE("small buckets");
  expect_parity(
      {.steps = steps,
       .replicate = {.bucket_bytes = 32, .first_bucket_bytes = 16}});
  SCOPED_TRACE("unused");
  expect_parity(
      {.steps = steps, .replicate = {.find_unused_parameters = true}});
  SCOPED_TRACE("static graph");
  expect_parity({.steps = steps, .replicate = {.static_graph = true}});
  expect_parity(
      {.steps = steps,
       .replicate = {
           .bucket_bytes = 32,
           .first_bucket_bytes = 16,
           .gradient_as_bucket_view = true}});
  SCOPED_TRACE("views");
  ReplicateOptions power;
  power.comm_hook = CommHook::power_sgd;
  power.power_sgd = {
      .matrix_approximation_rank = 9,
      .start_power_sgd_iter = 1,
      .min_compression_rate = 1e-3};
  expect_parity({.steps = steps, .replicate = power});
  expect_parity({.steps = steps, .replicate = power, .divide_by_all = false});
}

TEST(JoinUnevenInputs, HoldsForWindowsOfSeveralMicroSteps) {
  expect_parity({.steps = {2, 6}, .window = 2});
  expect_parity({.steps = {9, 3, 0}, .window = 3});
}

TEST(JoinUnevenInputs, LeavesLoadersUneven) {
  std::vector<std::vector<float>> seen(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    torch::nn::Linear net(1, 1);
    auto [model, loader] = accelerator.prepare(
        net,
        DataLoader(
            TensorDataset{torch::arange(3, torch::kFloat).view({3, 1})}));
    auto& mine = seen[static_cast<std::size_t>(accelerator.process_index())];
    accelerator.join_uneven_inputs(
        [&, model = model, loader = &loader] {
          for (auto& [x] : *loader) {
            mine.push_back(x.template item<float>());
            accelerator.backward(model(x).sum());
          }
        },
        {.even_batches = false});
    mine.push_back(-1);
    for (auto& [x] : loader) mine.push_back(x.template item<float>());
  });
  EXPECT_EQ(seen[0], (std::vector<float>{0, 2, -1, 0, 2}));
  EXPECT_EQ(seen[1], (std::vector<float>{1, -1, 1, 0}));
}

struct NormNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(3));
};
TORCH_MODULE(NormNet);

TEST(JoinUnevenInputs, SendsBuffersOfARankThatHasData) {
  std::vector<torch::Tensor> means(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    NormNet net;
    auto model = accelerator.prepare(net);
    const int rank = accelerator.process_index();
    accelerator.join_uneven_inputs([&] {
      for (int step = 0; step < (rank == 0 ? 1 : 2); ++step) {
        accelerator.backward(model(torch::full({4, 3}, rank + 1.0F)).sum());
      }
    });
    means[static_cast<std::size_t>(rank)] = net->norm->running_mean.clone();
  });
  // 0.1 of rank 0's ones, then 0.9 of that and 0.1 of rank 1's twos.
  for (const auto& mean : means)
    EXPECT_TRUE(torch::allclose(mean, torch::full({3}, 0.29)));
}

// Whatever the ranks' numbers of micro-steps, they take the next steps together.
TEST(JoinUnevenInputs, DropsUnfinishedWindowsAndSaysSo) {
  struct Ends {
    std::vector<int> steps;       ///< micro-steps of each rank
    std::vector<int> full_steps;  ///< those in whole windows
    int num_warnings = 0;
  };
  for (const Ends& ends : std::vector<Ends>{
           {{2, 4}, {0, 3}, 2},
           {{4, 3}, {3, 3}, 1},
           {{1, 0, 8}, {0, 0, 6}, 2},
           {{6, 0, 3}, {6, 0, 3}, 0}}) {
    std::mutex mutex;
    std::vector<std::string> warnings;
    const std::vector<torch::Tensor> joined = train_joined(
        {.steps = ends.steps, .window = 3}, [&](const LogRecord& record) {
          const std::lock_guard lock(mutex);
          warnings.emplace_back(record.message);
        });
    const torch::Tensor alone =
        train_alone({.steps = ends.full_steps, .window = 3});
    for (const torch::Tensor& of_rank : joined)
      EXPECT_TRUE(torch::allclose(of_rank, alone, 1e-5, 1e-6)) << ends.steps;
    EXPECT_THAT(
        warnings,
        ::testing::AllOf(
            ::testing::SizeIs(ends.num_warnings),
            ::testing::Each(::testing::HasSubstr("are dropped"))));
  }
}

TEST(JoinUnevenInputs, HoldsForTwoModelsOfAGan) {
  std::vector<torch::Tensor> ends(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    torch::nn::Linear generator_net(2, 3), critic_net(3, 1);
    fill(*generator_net);
    fill(*critic_net);
    torch::optim::SGD generator_sgd(generator_net->parameters(), 0.1);
    torch::optim::SGD critic_sgd(critic_net->parameters(), 0.1);
    auto [generator, critic, generator_optimizer, critic_optimizer] =
        accelerator.prepare(
            generator_net, critic_net, generator_sgd, critic_sgd);
    const int rank = accelerator.process_index();
    accelerator.join_uneven_inputs([&,
                                    generator = generator,
                                    critic = critic,
                                    generator_optimizer = generator_optimizer,
                                    critic_optimizer = critic_optimizer] {
      for (int step = 0; step < rank * 2; ++step) {
        const auto fake = generator(torch::ones({4, 2}) * (rank + step));
        critic_optimizer.zero_grad();
        accelerator.backward(
            critic(fake.detach()).mean() - critic(batch_of(rank, step)).mean());
        critic_optimizer.step();
        generator_optimizer.zero_grad();
        accelerator.backward(-critic(fake).mean());
        generator_optimizer.step();
      }
    });
    auto parameters = generator_net->parameters();
    for (const auto& p : critic_net->parameters()) parameters.push_back(p);
    ends[static_cast<std::size_t>(rank)] =
        torch::nn::utils::parameters_to_vector(parameters).detach();
  });
  EXPECT_TRUE(torch::equal(ends[0], ends[2]));
  EXPECT_TRUE(torch::equal(ends[1], ends[2]));
}

TEST(JoinUnevenInputs, RefusesWhatNeedsAllRanks) {
  const auto joined =
      [](Precision precision,
         const std::function<void(
             const Accelerator&, const Model<torch::nn::LinearImpl>&)>& body) {
        run_on_ranks(2, [&](const WorldOptions& world) {
          Accelerator accelerator(
              {.mixed_precision = precision, .world = world});
          torch::nn::Linear net(3, 1);
          auto model = accelerator.prepare(net);
          accelerator.join_uneven_inputs([&] { body(accelerator, model); });
        });
      };
  expect_error<ConfigError>(
      [&] { joined(Precision::fp16, [](auto&, auto&) {}); }, "fp16");
  expect_error<ConfigError>(
      [&] {
        joined(Precision::no, [](const Accelerator& accelerator, auto&) {
          accelerator.join_uneven_inputs([] {});
        });
      },
      "inside itself");
  expect_error<ConfigError>(
      [&] {
        joined(Precision::no, [](const Accelerator& accelerator, auto& model) {
          accelerator.backward(
              model(torch::ones({2, 3})).mean(), {.num_items = 2});
        });
      },
      "num_items");
  expect_error<ConfigError>(
      [&] {
        joined(Precision::no, [](const Accelerator& accelerator, auto& model) {
          LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 1});
          local_sgd.step();
        });
      },
      "LocalSGD");
  expect_error<std::runtime_error>(
      [&] {
        joined(Precision::no, [](const Accelerator& accelerator, auto&) {
          if (accelerator.process_index() == 1)
            throw std::runtime_error("my own mistake");
        });
      },
      "my own mistake");
}

}  // namespace join_test
}  // namespace accelerate
