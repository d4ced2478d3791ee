// What else the library does with models, done with exported ones.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>
#include <accelerate/layerwise_casting.h>
#include <accelerate/optimizers.h>
#include <accelerate/planner.h>
#include <accelerate/profiler.h>
#include <accelerate/quantized_model.h>
#include <gmock/gmock.h>

#include "exported/recorded_program.h"
#include "support/run_on_ranks.h"

namespace accelerate::testing::uses_test {

using ::testing::Contains;
using ::testing::ElementsAre;

constexpr int kSteps = 4;

torch::Tensor ids_of(int step) {
  const auto generator = at::detail::createCPUGenerator(20 + step);
  return torch::randint(0, 64, {4, 8}, generator, torch::kLong);
}

template <class Net>
torch::Tensor loss_of_step(const Net& net, const torch::Tensor& ids) {
  return net(ids, torch::ones_like(ids), ids)["loss"];
}

// Losses of rank 0, each the mean over all ranks.
std::vector<double> losses_of(
    const std::string& program,
    int num_ranks,
    const AcceleratorOptions& chosen) {
  std::vector<double> losses;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = chosen;
    options.world = world;
    Accelerator accelerator(options);
    ExportedModel net = load_exported(program_path(program));
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < kSteps; ++step) {
      const auto ids = ids_of(step).chunk(
          accelerator.num_processes())[accelerator.process_index()];
      const auto loss = loss_of_step(model, ids);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      const auto mean = accelerator.reduce(loss.detach(), ReduceOp::mean);
      if (accelerator.is_main_process()) losses.push_back(mean.item<double>());
    }
    accelerator.finish();
  });
  return losses;
}

AcceleratorOptions in(Precision precision) {
  AcceleratorOptions options;
  options.mixed_precision = precision;
  return options;
}

TEST(ExportedUses, LinearLayersComputeInFloat8) {
  const ExportedModel net = load_exported(program_path("llama_bf16"));
  std::vector<std::string> in_float8;
  const AORecipeKwargs recipe;
  for (const auto& choice : choose_float8_layers(*net, recipe)) {
    if (choice.is_float8) in_float8.push_back(choice.name);
  }
  // Key and value projections have 8 rows, feed-forward layers 24.
  EXPECT_THAT(
      in_float8,
      ElementsAre(
          "model.layers.0.self_attn.o_proj",
          "model.layers.1.self_attn.q_proj",
          "model.layers.1.self_attn.o_proj"));
  const auto bf16 = losses_of("llama_bf16", 1, in(Precision::bf16));
  AcceleratorOptions options = in(Precision::fp8);
  options.fp8_recipe = recipe;
  const auto fp8 = losses_of("llama_bf16", 1, options);
  expect_near(fp8, bf16, 2e-2);
  EXPECT_NE(fp8, bf16);
  options.parallel.fully_sharded = FullyShardedDataParallelOptions{
      .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
      .transformer_cls_names_to_wrap =
          std::vector<std::string>{"LlamaDecoderLayer"}};
  expect_near(losses_of("llama_bf16", 2, options), fp8, 2e-3);
}

// The program with the values that codes stand for computes the same.
TEST(ExportedUses, WeightsAreQuantized) {
  const auto ids = ids_of(0);
  const auto logits_of_net = [&](ExportedModel& net) {
    return net->forward(ids, torch::ones_like(ids), ids)["logits"].detach();
  };
  std::vector<QuantizationOptions> kinds(2);
  kinds[0].load_in_8bit = true;
  kinds[1].load_in_4bit = true;
  kinds[1].bnb_4bit_quant_type = "nf4";
  for (const QuantizationOptions& kind : kinds) {
    ExportedModel net = load_exported(program_path("llama"));
    ExportedModel other = load_exported(program_path("llama"));
    const torch::Tensor exact = logits_of_net(net);
    const QuantizedModel quantized = load_and_quantize_model(*net, kind);
    const auto names = quantized.module_names();
    EXPECT_EQ(names.size(), 14);  // all linear layers but lm_head
    EXPECT_THAT(names, Contains("model.layers.1.mlp.down_proj"));
    {
      const torch::NoGradGuard no_grad;
      auto parameters = other->named_parameters();
      for (const std::string& name : names)
        parameters[name + ".weight"].copy_(
            quantized.weight(name).dequantize(torch::kFloat));
    }
    const torch::Tensor logits = logits_of_net(net);
    EXPECT_TRUE(torch::allclose(logits, logits_of_net(other), 1e-4, 1e-4));
    EXPECT_FALSE(torch::equal(logits, exact));
    EXPECT_LT(
        quantized.get_memory_footprint(), other->parameters().size() * 4096);
  }
}

// What is before and after frozen codes still trains.
TEST(ExportedUses, GradientsReachWhatIsAroundQuantizedWeights) {
  ExportedModel net = load_exported(program_path("llama"));
  QuantizationOptions options;
  options.load_in_4bit = true;
  const QuantizedModel quantized = load_and_quantize_model(*net, options);
  const auto ids = ids_of(0);
  net->forward(ids, torch::ones_like(ids), ids)["loss"].backward();
  for (const auto& item : net->named_parameters()) {
    if (!item.value().requires_grad()) continue;
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().sum().item<double>(), 0) << item.key();
  }
}

// What a program computes with some of its weights rounded to a dtype.
torch::Tensor rounded_output(
    const std::string& program,
    torch::ScalarType dtype,
    const std::vector<std::string>& classes) {
  ExportedModel net = load_exported(program_path(program));
  net->eval();
  const torch::NoGradGuard no_grad;
  for (const auto& module : net->modules()) {
    if (std::find(classes.begin(), classes.end(), module->name()) ==
        classes.end())
      continue;
    for (auto& parameter : module->parameters(/*recurse=*/false))
      parameter.copy_(parameter.to(dtype).to(torch::kFloat));
  }
  return logits_of(net->forward(Record(program).inputs()));
}

TEST(ExportedUses, WeightsAreStoredInOtherDtypes) {
  const std::pair<const char*, std::vector<std::string>> programs[] = {
      {"llama", {"Linear"}}, {"cnn", {"Linear", "Conv2d"}}};
  for (const auto& [program, classes] : programs) {
    for (const auto dtype :
         {torch::kBFloat16, torch::kHalf, torch::kFloat8_e4m3fn}) {
      SCOPED_TRACE(std::string(program) + " in " + c10::toString(dtype));
      ExportedModel net = load_exported(program_path(program));
      net->eval();
      attach_layerwise_casting_hooks(*net, dtype, torch::kFloat);
      for (const auto& module : net->modules()) {
        const bool is_stored =
            std::find(classes.begin(), classes.end(), module->name()) !=
            classes.end();
        for (const auto& parameter : module->parameters(/*recurse=*/false)) {
          EXPECT_EQ(parameter.scalar_type(), is_stored ? dtype : torch::kFloat)
              << module->name();
        }
      }
      const torch::NoGradGuard no_grad;
      expect_same(
          logits_of(net->forward(Record(program).inputs())),
          rounded_output(program, dtype, classes),
          "logits");
    }
  }
}

TEST(ExportedUses, StepsOfLomoAreThoseOfSgd) {
  const auto sgd = losses_of("llama", 1, {});
  for (const int num_ranks : {1, 2}) {
    std::vector<double> losses;
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      Accelerator accelerator({.world = world});
      ExportedModel net = load_exported(program_path("llama"));
      optim::Lomo lomo(net->parameters());
      auto [model, optimizer] = accelerator.prepare(net, lomo);
      for (int step = 0; step < kSteps; ++step) {
        const auto ids = ids_of(step).chunk(
            accelerator.num_processes())[accelerator.process_index()];
        const auto loss = loss_of_step(model, ids);
        accelerator.lomo_backward(loss, 0.1);
        const auto mean = accelerator.reduce(loss.detach(), ReduceOp::mean);
        if (accelerator.is_main_process())
          losses.push_back(mean.item<double>());
      }
      accelerator.finish();
    });
    expect_near(losses, sgd, 3e-6);
  }
}

TEST(ExportedUses, ExpertsAreTrainedAsTheyAre) {
  const auto one = losses_of("mixtral", 1, {});
  expect_near(losses_of("mixtral", 2, {}), one, 3e-6);
  AcceleratorOptions options;
  options.parallel.fully_sharded = FullyShardedDataParallelOptions{
      .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
      .transformer_cls_names_to_wrap =
          std::vector<std::string>{"MixtralDecoderLayer"}};
  expect_near(losses_of("mixtral", 2, options), one, 3e-6);
}

// The gradients' sum of one process, when ranks have halves of each sequence.
class ExportedSequences : public ::testing::TestWithParam<const char*> {};

TEST_P(ExportedSequences, AreDividedForContextParallelism) {
  const auto train = [](int num_ranks) {
    std::vector<torch::Tensor> weights;
    run_on_ranks(num_ranks, [&](const WorldOptions& world) {
      AcceleratorOptions options;
      options.parallel.context = num_ranks;
      options.world = world;
      Accelerator accelerator(options);
      ExportedModel net = load_exported(program_path(GetParam()));
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < kSteps; ++step) {
        auto ids = ids_of(step).to(accelerator.device());
        auto labels = ids.roll(-1, 1);
        auto places =
            torch::arange(8).expand({4, 8}).contiguous().to(ids.device());
        const auto sequence = accelerator.maybe_context_parallel(
            {ids, labels, places}, {1, 1, 1});
        accelerator.backward(torch::nn::functional::cross_entropy(
            model(ids, places)[0].flatten(0, 1), labels.flatten()));
        optimizer.step();
        optimizer.zero_grad();
      }
      if (accelerator.is_main_process()) {
        for (const auto& parameter : net->parameters())
          weights.push_back(parameter.detach().clone());
      }
      accelerator.finish();
    });
    return weights;
  };
  const auto one = train(1), two = train(2);
  ASSERT_EQ(two.size(), one.size());
  for (std::size_t i = 0; i < one.size(); ++i)
    EXPECT_TRUE(torch::allclose(two[i], one[i], 1e-5, 1e-6)) << i;
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    ExportedSequences,
    ::testing::Values("encoder_context", "gpt2_context", "llama_context"),
    [](const auto& tested) { return std::string(tested.param); });

TEST(ExportedUses, MemoryIsPlannedByPythonsClasses) {
  run_on_ranks(1, [](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    ExportedModel net = load_exported(program_path("llama"));
    std::int64_t bytes = 0;
    for (const auto& parameter : net->parameters())
      bytes += static_cast<std::int64_t>(parameter.nbytes());
    const MemoryPlan plan = plan_memory(
        accelerator.world(),
        net,
        [&](std::int64_t num_samples) {
          const auto ids = torch::zeros({num_samples, 8}, torch::kLong);
          return net->forward(ids, torch::ones_like(ids), ids)["loss"];
        },
        {.num_ranks = 4,
         .precisions = {FloatType::fp32},
         .unit_classes = {"LlamaDecoderLayer"}});
    const MemoryRow whole = plan.row(MemorySplit::replicated);
    EXPECT_EQ(whole.weights, bytes);
    const MemoryRow sharded = plan.row(MemorySplit::full_shard);
    EXPECT_LT(sharded.weights, whole.weights);
    EXPECT_GT(sharded.units, 0);
    accelerator.finish();
  });
}

TEST(ExportedUses, OperatorsAreProfiledByPythonsModules) {
  run_on_ranks(1, [](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto model = accelerator.prepare(load_exported(program_path("llama")));
    Profile profile = accelerator.profile(
        {.activities = std::vector{ProfilerActivity::cpu},
         .with_modules = true});
    static_cast<void>(loss_of_step(model, ids_of(0)));
    profile.stop();
    std::vector<std::string> modules;
    for (const auto& row :
         profile.results().key_averages({.group_by_module = true}))
      modules.push_back(row.module);
    EXPECT_THAT(
        modules, Contains(::testing::EndsWith("layers.1.self_attn.q_proj")));
    accelerator.finish();
  });
}

}  // namespace accelerate::testing::uses_test
