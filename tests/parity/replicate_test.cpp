// N ranks end with the same weights as one rank on the same global batches.
#include <filesystem>
#include <map>
#include <mutex>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace replicate_test {

using testing::expect_error;
using testing::run_on_ranks;

constexpr int kSteps = 6;
constexpr std::int64_t kGlobalBatch = 36;

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return fc2(torch::tanh(fc1(x)));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(5, 7));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(7, 3));
  torch::Tensor spare = register_parameter("spare", torch::ones({4}));
};
TORCH_MODULE(Net);

using Weights = std::map<std::string, torch::Tensor>;

struct Case {
  std::string optimizer = "SGD";
  int accumulation = 1;
  ReplicateOptions replicate = {.find_unused_parameters = true};
  Precision precision = Precision::no;
  bool master_weights = false;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name,
    const std::vector<torch::Tensor>& parameters) {
  if (name == "AdamW") {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  }
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

// Final weights of every rank.
std::vector<Weights> train(int num_ranks, const Case& setup) {
  torch::manual_seed(3);
  const auto inputs = torch::randn({kSteps * kGlobalBatch, 5});
  const auto labels = torch::randint(3, {kSteps * kGlobalBatch});
  Net first;
  std::vector<Weights> ends(static_cast<std::size_t>(num_ranks));
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.mixed_precision = setup.precision,
         .master_weights = setup.master_weights,
         .gradient_accumulation_steps = setup.accumulation,
         .parallel = {.replicate_options = setup.replicate},
         .world = world});
    Net net;
    if (accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      auto from = first->named_parameters();
      for (auto& item : net->named_parameters())
        item.value().copy_(from[item.key()]);
    }
    const auto dtype = !setup.master_weights ? torch::kFloat
        : setup.precision == Precision::fp16 ? torch::kHalf
                                             : torch::kBFloat16;
    net->to(dtype);
    auto inner = make_optimizer(setup.optimizer, net->parameters());
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        *inner,
        DataLoader(
            TensorDataset(inputs, labels),
            {.batch_size = kGlobalBatch / setup.accumulation,
             .split_batches = true}));
    for (auto& [x, y] : loader) {
      auto micro_step = accelerator.accumulate(model);
      optimizer.zero_grad();
      accelerator.backward(torch::nn::functional::cross_entropy(
          model(x.to(dtype)).to(torch::kFloat), y));
      optimizer.step();
    }
    Weights& weights =
        ends[static_cast<std::size_t>(accelerator.process_index())];
    for (const auto& item : net->named_parameters()) {
      weights[item.key()] =
          item.value().detach().to(torch::kFloat, false, /*copy=*/true);
    }
  });
  return ends;
}

void expect_same(
    const std::vector<Weights>& many,
    const Weights& one,
    double tolerance) {
  for (std::size_t rank = 0; rank < many.size(); ++rank) {
    for (const auto& [name, tensor] : one) {
      EXPECT_TRUE(
          torch::allclose(many[rank].at(name), tensor, tolerance, tolerance))
          << name << " on rank " << rank << " differs by "
          << (many[rank].at(name) - tensor).abs().max().item<double>();
      EXPECT_TRUE(torch::equal(many[rank].at(name), many[0].at(name))) << name;
    }
  }
}

class ReplicateParity
    : public ::testing::TestWithParam<std::tuple<int, std::string, int>> {};

TEST_P(ReplicateParity, EndsWithTheWeightsOfOneRank) {
  const auto& [num_ranks, optimizer, accumulation] = GetParam();
  // The window splits the batch, so the reference has the same global batch.
  const Weights one = train(1, {.optimizer = optimizer})[0];
  expect_same(
      train(num_ranks, {.optimizer = optimizer, .accumulation = accumulation}),
      one,
      1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Ranks,
    ReplicateParity,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 4),
        ::testing::Values("SGD", "AdamW"),
        ::testing::Values(1)));
INSTANTIATE_TEST_SUITE_P(
    Accumulation,
    ReplicateParity,
    ::testing::Combine(
        ::testing::Values(1, 2),
        ::testing::Values("SGD"),
        ::testing::Values(2, 3)));

struct Variant {
  std::string name;
  ReplicateOptions options;
  bool master_weights = false;
};

std::vector<Variant> all_variants() {
  std::vector<Variant> variants;
  variants.push_back({"plain", {.find_unused_parameters = true}});
  variants.push_back({"static_graph", {.static_graph = true}});
  variants.push_back(
      {"views",
       {.bucket_bytes = 64,
        .first_bucket_bytes = 16,
        .find_unused_parameters = true,
        .gradient_as_bucket_view = true}});
  variants.push_back(
      {"master_weights", {.find_unused_parameters = true}, true});
  variants.push_back(
      {"bf16_hook",
       {.find_unused_parameters = true, .comm_hook = CommHook::bf16}});
  variants.push_back(
      {"fp16_hook",
       {.find_unused_parameters = true, .comm_hook = CommHook::fp16}});
  variants.push_back(
      {"power_sgd",
       {.find_unused_parameters = true,
        .comm_hook = CommHook::power_sgd,
        .power_sgd = {
            .matrix_approximation_rank = 7,
            .start_power_sgd_iter = 1,
            .min_compression_rate = 1e-3}}});
  variants.push_back(
      {"batched_power_sgd",
       {.find_unused_parameters = true,
        .comm_hook = CommHook::batched_power_sgd,
        .power_sgd = {
            .matrix_approximation_rank = 20, .start_power_sgd_iter = 1}}});
  return variants;
}

// Bound on rounding errors of weights around 1 over six steps.
double bound_of(const Variant& variant, Precision precision) {
  if (variant.master_weights || precision == Precision::bf16 ||
      variant.options.comm_hook == CommHook::bf16) {
    return 2e-2;
  }
  if (precision == Precision::fp16 ||
      variant.options.comm_hook == CommHook::fp16)
    return 3e-3;
  return 1e-5;
}

class EveryVariant : public ::testing::TestWithParam<Variant> {};

TEST_P(EveryVariant, EndsWithTheWeightsOfOneRank) {
  const Variant& variant = GetParam();
  for (const Precision precision :
       {Precision::no, Precision::bf16, Precision::fp16}) {
    const Weights one = train(
        1,
        {.precision = precision, .master_weights = variant.master_weights})[0];
    for (const int accumulation : {1, 3}) {
      for (const int num_ranks : {1, 2, 3}) {
        SCOPED_TRACE(
            ::testing::Message()
            << name_of(precision) << ", window of " << accumulation << ", "
            << num_ranks << " ranks");
        expect_same(
            train(
                num_ranks,
                {.accumulation = accumulation,
                 .replicate = variant.options,
                 .precision = precision,
                 .master_weights = variant.master_weights}),
            one,
            bound_of(variant, precision));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Matrix,
    EveryVariant,
    ::testing::ValuesIn(all_variants()),
    [](const ::testing::TestParamInfo<Variant>& variant) {
      return variant.param.name;
    });

TEST(ReplicateParity, HoldsForSmallBuckets) {
  const Weights one = train(1, {})[0];
  expect_same(
      train(
          3,
          {.replicate =
               {.bucket_bytes = 64,
                .first_bucket_bytes = 16,
                .find_unused_parameters = true}}),
      one,
      1e-5);
}

TEST(ReplicateParity, HoldsForGradientsAsBucketViews) {
  const Weights one = train(1, {})[0];
  expect_same(
      train(
          2,
          {.replicate =
               {.find_unused_parameters = true,
                .gradient_as_bucket_view = true}}),
      one,
      1e-5);
}

TEST(ReplicateParity, HoldsForAStaticGraph) {
  const Weights one = train(1, {})[0];
  expect_same(train(2, {.replicate = {.static_graph = true}}), one, 1e-5);
}

TEST(ReplicateParity, KeepsRanksEqualInBf16) {
  const Weights one = train(1, {.precision = Precision::bf16})[0];
  expect_same(train(2, {.precision = Precision::bf16}), one, 2e-2);
}

// Registered in the order opposite to that of its gradients, and in other sizes
// than fit evenly into buckets.
struct BackwardsNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return last(torch::tanh(middle(torch::tanh(first(x)))));
  }
  torch::nn::Linear last = register_module("last", torch::nn::Linear(13, 3));
  torch::nn::Linear middle =
      register_module("middle", torch::nn::Linear(9, 13));
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 9));
};
TORCH_MODULE(BackwardsNet);

// Steps `begin` to `end` of a run of three ranks, on Gloo, whose sums depend on
// an element's position in the message.
torch::Tensor train_three(
    const ReplicateOptions& replicate,
    int begin,
    int end,
    const std::filesystem::path& load_from,
    const std::filesystem::path& save_to) {
  torch::Tensor weights;
  run_on_ranks(3, [&](WorldOptions world) {
    world.transport = "gloo";
    const Accelerator accelerator(
        {.parallel = {.replicate_options = replicate}, .world = world});
    BackwardsNet net;
    {
      // Ranks are threads, which share the generator of random numbers.
      const torch::NoGradGuard no_grad;
      double phase = 0;
      for (auto& each : net->parameters()) {
        const auto places = torch::arange(each.numel()) * 0.7 + ++phase;
        each.copy_(torch::sin(places).view(each.sizes()) * 0.4);
      }
    }
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    if (!load_from.empty()) accelerator.load_state(load_from);
    for (int step = begin; step < end; ++step) {
      const auto x = torch::sin(
          torch::arange(20, torch::kFloat) * 1.3 + 7 * step +
          2.9 * accelerator.process_index());
      accelerator.backward(model(x.view({4, 5})).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    if (!save_to.empty()) static_cast<void>(accelerator.save_state(save_to));
    if (!accelerator.is_main_process()) return;
    weights =
        torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  });
  return weights;
}

TEST(ReplicateParity, HoldsBitForBitAfterAResume) {
  for (const bool is_compressed : {false, true}) {
    for (const bool is_static : {false, true}) {
      const testing::TemporaryDirectory directory;
      ReplicateOptions options{
          .bucket_bytes = 512,
          .first_bucket_bytes = 128,
          .static_graph = is_static};
      if (is_compressed) {
        options.comm_hook = CommHook::batched_power_sgd;
        options.power_sgd.start_power_sgd_iter = 2;
      }
      const torch::Tensor expected = train_three(options, 0, 8, {}, {});
      train_three(options, 0, 4, {}, directory / "saved");
      EXPECT_TRUE(
          train_three(options, 4, 8, directory / "saved", {}).equal(expected))
          << is_compressed << is_static;
    }
  }
}

TEST(Replicate, NamesUnusedParametersInsteadOfHanging) {
  expect_error<ConfigError>([] { train(2, {.replicate = {}}); }, "\"spare\"");
}

struct NormNetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm =
      register_module("norm", torch::nn::BatchNorm1d(4));
};
TORCH_MODULE(NormNet);

TEST(Replicate, SendsBuffersOfRankZeroAfterEachStep) {
  std::vector<torch::Tensor> means(3);
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    NormNet net;
    auto model = accelerator.prepare(net);
    const auto x = torch::full(
        {4, 4}, static_cast<float>(accelerator.process_index() + 1));
    accelerator.backward(model(x).sum());
    means[static_cast<std::size_t>(accelerator.process_index())] =
        net->norm->running_mean.clone();
  });
  for (const auto& mean : means)
    EXPECT_TRUE(torch::allclose(mean, torch::full({4}, 0.1)));
}

TEST(Replicate, TakesWeightsAndBuffersOfRankZeroAtTheStart) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    NormNet net;
    const torch::NoGradGuard no_grad;
    net->norm->weight.fill_(accelerator.process_index() + 5);
    net->norm->running_var.fill_(accelerator.process_index() + 7);
    auto model = accelerator.prepare(net);
    EXPECT_EQ(model->norm->weight[0].item<float>(), 5);
    EXPECT_EQ(model->norm->running_var[0].item<float>(), 7);
  });
}

TEST(Replicate, RefusesModelsThatDiffer) {
  const auto prepare_different_models = [] {
    run_on_ranks(2, [](const WorldOptions& world) {
      Accelerator accelerator({.world = world});
      torch::nn::Linear net(3, accelerator.process_index() + 1);
      accelerator.prepare(net);
    });
  };
  expect_error<ConfigError>(
      prepare_different_models, "the model of rank 1 is not that of rank 0");
}

TEST(Replicate, TrainsTwoModelsOfAGan) {
  std::vector<double> sums(2);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    torch::manual_seed(accelerator.process_index());
    torch::nn::Linear generator_net(2, 3), critic_net(3, 1);
    torch::optim::SGD generator_sgd(generator_net->parameters(), 0.1);
    torch::optim::SGD critic_sgd(critic_net->parameters(), 0.1);
    auto [generator, critic, generator_optimizer, critic_optimizer] =
        accelerator.prepare(
            generator_net, critic_net, generator_sgd, critic_sgd);
    for (int step = 0; step < 3; ++step) {
      const auto noise = torch::randn({4, 2});
      const auto fake = generator(noise);
      critic_optimizer.zero_grad();
      accelerator.backward(
          critic(fake.detach()).mean() - critic(torch::randn({4, 3})).mean());
      critic_optimizer.step();
      generator_optimizer.zero_grad();
      accelerator.backward(-critic(fake).mean());
      generator_optimizer.step();
    }
    double sum = 0;
    for (const auto& net : {generator_net, critic_net}) {
      for (const auto& p : net->parameters()) sum += p.sum().item<double>();
    }
    sums[static_cast<std::size_t>(accelerator.process_index())] = sum;
  });
  EXPECT_EQ(sums[0], sums[1]);
}

TEST(Replicate, CarriesAnExceptionOfOneRankToTheOthers) {
  std::string seen_by_rank_0;
  const auto fail_on_one_rank = [&] {
    run_on_ranks(2, [&](const WorldOptions& world) {
      Accelerator accelerator({.world = world});
      torch::nn::Linear net(3, 1);
      auto model = accelerator.prepare(net);
      if (accelerator.process_index() == 1)
        throw std::runtime_error("my own mistake");
      try {
        accelerator.backward(model(torch::ones({2, 3})).sum());
      } catch (const DistributedError& error) {
        seen_by_rank_0 = error.what();
        throw;
      }
    });
  };
  expect_error<std::runtime_error>(fail_on_one_rank, "my own mistake");
  EXPECT_THAT(seen_by_rank_0, ::testing::HasSubstr("rank 1"));
}

}  // namespace replicate_test
}  // namespace accelerate
