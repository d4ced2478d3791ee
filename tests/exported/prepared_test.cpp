// Exported models that an Accelerator trains, saves and resumes.
#include <functional>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <gmock/gmock.h>

#include "exported/recorded_program.h"
#include "exported/written_archive.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::prepared_test {

constexpr int kSteps = 6;

struct Training {
  const char* program = "llama";
  int num_ranks = 1;
  AcceleratorOptions options = {};
  /// Makes the model within init_model().
  bool makes_on_rank_0 = false;
  /// Called after the steps on each rank.
  std::function<void(Accelerator&, const Model<ExportedModelImpl>&)> then = {};
};

FullyShardedDataParallelOptions sharded(
    const std::string& layer = "LlamaDecoderLayer") {
  FullyShardedDataParallelOptions options;
  options.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap;
  options.transformer_cls_names_to_wrap = std::vector<std::string>{layer};
  return options;
}

torch::Tensor batch_of(int step) {
  auto generator = at::detail::createCPUGenerator(7 + step);
  return torch::randint(
      0, 64, {4, step % 2 == 0 ? 8 : 12}, generator, torch::kLong);
}

// Ranks draw other random numbers than one process does.
ExportedModel without_dropout(const std::string& program) {
  ExportedModel net = load_exported(program_path(program));
  net->eval();
  return net;
}

// The loss of a model that takes ids, or also a mask and labels.
template <class Forward>
torch::Tensor loss_for(
    const torch::Tensor& ids,
    const std::string& program,
    const Forward& forward) {
  return program == "gpt2" ? loss_of(forward(ids))
                           : loss_of(forward(ids, torch::ones_like(ids), ids));
}

// The losses of rank 0, each the mean over all ranks.
std::vector<double> losses_of(const Training& run) {
  std::vector<double> losses;
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = run.options;
    options.world = world;
    Accelerator accelerator(options);
    const auto load = [&] { return without_dropout(run.program); };
    ExportedModel net =
        run.makes_on_rank_0 ? accelerator.init_model(load) : load();
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const int window = options.gradient_accumulation_steps.value_or(1);
    for (int step = 0; step < kSteps; ++step) {
      const auto own = batch_of(step).chunk(
          accelerator.num_processes())[accelerator.process_index()];
      torch::Tensor sum = torch::zeros({}, accelerator.device());
      for (const torch::Tensor& part : own.chunk(window)) {
        const MicroStep micro_step = accelerator.accumulate(model);
        const auto ids = part.contiguous().to(accelerator.device());
        const auto loss = loss_for(
            ids, run.program, [&, &model = model](const auto&... inputs) {
              return model(inputs...);
            });
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        sum += loss.detach() / window;
      }
      const auto mean = accelerator.reduce(sum, ReduceOp::mean);
      if (accelerator.is_main_process()) losses.push_back(mean.item<double>());
    }
    if (run.then) run.then(accelerator, model);
    accelerator.finish();
  });
  return losses;
}

// The losses of a loop without an Accelerator.
std::vector<double> plain_losses(const std::string& program = "llama") {
  ExportedModel net = without_dropout(program);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto ids = batch_of(step);
    sgd.zero_grad();
    const auto loss = loss_for(ids, program, [&](const auto&... inputs) {
      return net->forward(inputs...);
    });
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(PreparedExportedModel, TrainsAsWithoutAnAccelerator) {
  EXPECT_EQ(losses_of({}), plain_losses());
}

TEST(PreparedExportedModel, TrainsOnTwoReplicas) {
  expect_near(losses_of({.num_ranks = 2}), plain_losses(), 3e-6);
}

TEST(PreparedExportedModel, TrainsShardedByItsPythonClass) {
  Training run{.num_ranks = 2};
  run.options.parallel.fully_sharded = sharded();
  expect_near(losses_of(run), plain_losses(), 3e-6);
}

TEST(PreparedExportedModel, TrainsTiedWeightsShardedAndRecomputed) {
  Training run{.program = "gpt2", .num_ranks = 2};
  expect_near(losses_of(run), plain_losses("gpt2"), 3e-6);
  run.options.parallel.fully_sharded = sharded("GPT2Block");
  run.options.parallel.fully_sharded->activation_checkpointing = true;
  expect_near(losses_of(run), plain_losses("gpt2"), 3e-6);
}

TEST(PreparedExportedModel, TrainsWithRecomputedActivations) {
  Training run{.num_ranks = 2};
  run.options.parallel.fully_sharded = sharded();
  run.options.parallel.fully_sharded->activation_checkpointing = true;
  expect_near(losses_of(run), plain_losses(), 3e-6);
}

TEST(PreparedExportedModel, TrainsWithAccumulatedGradients) {
  for (const int num_ranks : {1, 2}) {
    Training run{.num_ranks = num_ranks};
    run.options.gradient_accumulation_steps = 2;
    if (num_ranks > 1) run.options.parallel.fully_sharded = sharded();
    expect_near(losses_of(run), plain_losses(), 3e-6);
  }
}

TEST(PreparedExportedModel, TrainsInFp16) {
  Training run;
  run.options.mixed_precision = Precision::fp16;
  run.options.grad_scaler.init_scale = 128;  // no step overflows
  const auto one = losses_of(run);
  expect_near(one, plain_losses(), 2e-2);
  run.num_ranks = 2;
  run.options.parallel.fully_sharded = sharded();
  expect_near(losses_of(run), one, 2e-3);
}

TEST(PreparedExportedModel, NeedsItsWeightsOnRank0Only) {
  Training run{.num_ranks = 2, .makes_on_rank_0 = true};
  run.options.parallel.fully_sharded = sharded();
  run.options.parallel.fully_sharded->cpu_ram_efficient_loading = true;
  expect_near(losses_of(run), plain_losses(), 3e-6);
}

// What prepare() says about a program; one that is not described has no facts
// of accelerate_cpp_export.py.
std::vector<std::string> warnings_of(
    const std::string& program,
    Precision precision,
    bool is_described = true) {
  const TemporaryDirectory directory;
  EditedArchive archive(program_path(program));
  if (!is_described) archive.erase("extra/accelerate.json");
  archive.write(directory / "model.pt2");
  std::vector<std::string> warnings;
  run_on_ranks(1, [&](WorldOptions world) {
    world.logger = Logger(
        [&](const LogRecord& record) { warnings.emplace_back(record.message); },
        LogLevel::warning);
    Accelerator accelerator({.mixed_precision = precision, .world = world});
    static_cast<void>(
        accelerator.prepare(load_exported(directory / "model.pt2")));
    accelerator.finish();
  });
  return warnings;
}

TEST(PreparedExportedModel, WarnsIfItWasExportedForAnotherPrecision) {
  using ::testing::ElementsAre;
  using ::testing::HasSubstr;
  using ::testing::IsEmpty;
  EXPECT_THAT(warnings_of("llama", Precision::no), IsEmpty());
  EXPECT_THAT(warnings_of("llama_bf16", Precision::bf16), IsEmpty());
  EXPECT_THAT(
      warnings_of("llama", Precision::bf16),
      ElementsAre(HasSubstr(
          "LlamaForCausalLM was exported without autocast but runs under "
          "autocast in BFloat16")));
  EXPECT_THAT(
      warnings_of("llama_bf16", Precision::no),
      ElementsAre(
          HasSubstr("was exported under autocast in BFloat16 but runs without "
                    "autocast")));
  EXPECT_THAT(
      warnings_of("llama", Precision::no, /*is_described=*/false),
      ElementsAre(HasSubstr("was not exported by accelerate_cpp_export.py")));
}

TEST(PreparedExportedModel, TrainsInBf16) {
  Training run{.program = "llama_bf16"};
  run.options.mixed_precision = Precision::bf16;
  const auto one = losses_of(run);
  expect_near(one, plain_losses(), 2e-2);
  run.num_ranks = 2;
  run.options.parallel.fully_sharded = sharded();
  expect_near(losses_of(run), one, 2e-3);
}

TEST(PreparedExportedModel, RefusesShardsIn16BitsWithoutAutocast) {
  for (const int num_ranks : {1, 2}) {
    Training run{.num_ranks = num_ranks};
    run.options.parallel.fully_sharded = sharded();
    run.options.parallel.fully_sharded->mixed_precision_policy =
        MixedPrecisionPolicy{.param_dtype = FloatType::bf16};
    expect_error<ConfigError>(
        [&] { losses_of(run); },
        "the param_dtype of the mixed_precision_policy must be Float, in which "
        "'model.embed_tokens.weight' of Embedding was exported, but is "
        "BFloat16 without autocast: export with export_for_cpp(..., "
        "autocast=)");
    // Casts of autocast are those of the shards.
    run.program = "llama_bf16";
    run.options.mixed_precision = Precision::bf16;
    expect_near(losses_of(run), plain_losses(), 3e-2);
  }
}

TEST(PreparedExportedModel, ResumesBitForBit) {
  const TemporaryDirectory directory;
  for (const int num_ranks : {1, 2}) {
    Training run{.num_ranks = num_ranks};
    if (num_ranks > 1) run.options.parallel.fully_sharded = sharded();
    const auto path = directory / std::to_string(num_ranks);
    run.then = [&](Accelerator& accelerator, const auto& model) {
      const auto values = [&] { return accelerator.get_state_dict(model); };
      accelerator.save_state(path).wait();
      const auto before = values();
      std::vector<torch::Tensor> copies;
      for (const auto& [name, tensor] : before)
        copies.push_back(tensor.clone());
      {
        const auto full = model.full_parameters();
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model.parameters()) parameter.add_(1);
      }
      accelerator.load_state(path);
      const auto after = values();
      ASSERT_EQ(after.size(), copies.size());
      std::size_t next = 0;
      for (const auto& [name, tensor] : after)
        EXPECT_TRUE(torch::equal(tensor, copies[next++])) << name;
    };
    losses_of(run);
  }
}

TEST(PreparedExportedModel, SavesWeightsUnderPythonsNames) {
  const TemporaryDirectory directory;
  Training run{.num_ranks = 2};
  run.options.parallel.fully_sharded = sharded();
  run.then = [&](Accelerator& accelerator, const auto& model) {
    accelerator.save_model(model, directory.path());
  };
  losses_of(run);
  const safetensors::Reader reader(directory / "model.safetensors");
  ExportedModel net = load_exported(program_path("llama"), {.weights = false});
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(reader.contains(item.key())) << item.key();
  EXPECT_EQ(reader.header().tensors.size(), net->named_parameters().size());
}

TEST(PreparedExportedModel, GathersItsOutputs) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.world = world});
    auto model = accelerator.prepare(load_exported(program_path("llama")));
    const auto ids = batch_of(0);
    const auto outputs = model(ids, torch::ones_like(ids), ids);
    const ExportedOutputs gathered = accelerator.gather(outputs);
    EXPECT_EQ(gathered["logits"].size(0), 2 * ids.size(0));
    accelerator.finish();
  });
}

}  // namespace accelerate::testing::prepared_test
