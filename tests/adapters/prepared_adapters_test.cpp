// Adapters of models that an Accelerator trains, saves and resumes.
#include <functional>
#include <string>
#include <vector>

#include <accelerate/accelerate.h>
#include <accelerate/adapters.h>
#include <gmock/gmock.h>

#include "adapters/mixed_net.h"
#include "exported/recorded_program.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::prepared_adapters_test {

constexpr int kSteps = 5;

struct Training {
  int num_ranks = 1;
  AcceleratorOptions options = {};
  AdapterOptions adapters = {
      .rank = 4,
      .alpha = 8,
      .target_modules = {"q_proj", "v_proj", "down_proj"}};
  bool is_half = false;
  /// Called before prepare().
  std::function<void(ExportedModel&)> before = {};
  /// Called after the steps on each rank.
  std::function<
      void(Accelerator&, ExportedModel&, const Model<ExportedModelImpl>&)>
      then = {};
};

FullyShardedDataParallelOptions sharded(bool recomputes = false) {
  FullyShardedDataParallelOptions options;
  options.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap;
  options.transformer_cls_names_to_wrap =
      std::vector<std::string>{"LlamaDecoderLayer"};
  options.activation_checkpointing = recomputes;
  return options;
}

torch::Tensor batch_of(int step) {
  auto generator = at::detail::createCPUGenerator(7 + step);
  return torch::randint(
      0, 64, {4, step % 2 == 0 ? 8 : 12}, generator, torch::kLong);
}

ExportedModel adapted(const Training& run) {
  ExportedModel net =
      load_exported(program_path(run.is_half ? "llama_bf16" : "llama"));
  add_adapters(net, run.adapters);
  // Ranks that are threads share the default generator.
  fill_adapters(*net);
  return net;
}

std::vector<torch::Tensor> trained(const torch::nn::Module& net) {
  std::vector<torch::Tensor> found;
  for (const torch::Tensor& each : net.parameters())
    if (each.requires_grad()) found.push_back(each);
  return found;
}

// The losses of rank 0, each the mean over all ranks.
std::vector<double> losses_of(const Training& run) {
  std::vector<double> losses;
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = run.options;
    options.world = world;
    Accelerator accelerator(options);
    ExportedModel net = adapted(run);
    if (run.before) run.before(net);
    torch::optim::SGD sgd(trained(*net), 0.5);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    torch::manual_seed(2);
    for (int step = 0; step < kSteps; ++step) {
      const Mesh& mesh = accelerator.mesh();
      const auto ids = batch_of(step)
                           .chunk(mesh.batch_count())[mesh.batch_rank()]
                           .contiguous();
      optimizer.zero_grad();
      const auto loss = model(ids, torch::ones_like(ids), ids)["loss"];
      accelerator.backward(loss);
      optimizer.step();
      const auto mean = accelerator.reduce(loss.detach(), ReduceOp::mean);
      if (accelerator.is_main_process()) losses.push_back(mean.item<double>());
    }
    if (run.then) run.then(accelerator, net, model);
    accelerator.finish();
  });
  return losses;
}

// The losses of a loop without an Accelerator.
std::vector<double> plain_losses(const Training& run = {}) {
  ExportedModel net = adapted(run);
  torch::optim::SGD sgd(trained(*net), 0.5);
  torch::manual_seed(2);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto ids = batch_of(step);
    sgd.zero_grad();
    const auto loss = net->forward(ids, torch::ones_like(ids), ids)["loss"];
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST(PreparedAdapters, TrainAsWithoutAnAccelerator) {
  EXPECT_EQ(losses_of({}), plain_losses());
}

TEST(PreparedAdapters, TrainOnReplicasAndShards) {
  const auto plain = plain_losses();
  Training run{.num_ranks = 2};
  expect_near(losses_of(run), plain, 5e-6);
  run.options.parallel.fully_sharded = sharded();
  expect_near(losses_of(run), plain, 5e-6);
  run.options.parallel.fully_sharded = sharded(/*recomputes=*/true);
  expect_near(losses_of(run), plain, 5e-6);
}

TEST(PreparedAdapters, OfAllKindsOfOptionsTrainSharded) {
  Training run;
  run.adapters.target_modules = {"embed_tokens", "up_proj", "o_proj"};
  run.adapters.use_dora = true;
  run.adapters.modules_to_save = {"norm", "lm_head"};
  const auto plain = plain_losses(run);
  EXPECT_EQ(losses_of(run), plain);
  run.num_ranks = 2;
  run.options.parallel.fully_sharded = sharded(/*recomputes=*/true);
  expect_near(losses_of(run), plain, 2e-5);
}

// Dropout inside an operator's place draws the same numbers again.
TEST(PreparedAdapters, AreRecomputedWithTheirDropout) {
  Training run;
  run.adapters.dropout = 0.3;
  run.options.parallel.fully_sharded = sharded();
  const auto kept = losses_of(run);
  run.options.parallel.fully_sharded = sharded(/*recomputes=*/true);
  EXPECT_EQ(losses_of(run), kept);
  EXPECT_EQ(kept, plain_losses(run));
}

TEST(PreparedAdapters, TrainInBf16) {
  Training run{.is_half = true};
  run.options.mixed_precision = Precision::bf16;
  const auto one = losses_of(run);
  expect_near(one, plain_losses(), 3e-2);
  run.num_ranks = 2;
  run.options.parallel.fully_sharded = sharded();
  expect_near(losses_of(run), one, 3e-3);
}

TEST(PreparedAdapters, ResumeBitForBit) {
  const TemporaryDirectory directory;
  for (const int num_ranks : {1, 2}) {
    Training run{.num_ranks = num_ranks};
    if (num_ranks > 1) run.options.parallel.fully_sharded = sharded();
    const auto path = directory / std::to_string(num_ranks);
    run.then = [&](Accelerator& accelerator, auto&, const auto& model) {
      accelerator.save_state(path).wait();
      std::vector<torch::Tensor> before;
      for (const auto& [name, tensor] : model.state_dict())
        before.push_back(tensor.clone());
      {
        const auto full = model.full_parameters();
        const torch::NoGradGuard no_grad;
        for (auto& parameter : trained(*model.module())) parameter.add_(1);
      }
      accelerator.load_state(path);
      std::size_t next = 0;
      for (const auto& [name, tensor] : model.state_dict())
        EXPECT_TRUE(torch::equal(tensor, before[next++])) << name;
    };
    losses_of(run);
  }
}

torch::Tensor output_of(ExportedModel& net) {
  const torch::NoGradGuard no_grad;
  const auto ids = batch_of(0);
  return net->forward(ids, torch::ones_like(ids), ids)["logits"];
}

// The plan of Hugging Face's Llama.
ParallelizePlan llama_plan() {
  return parse_tp_plan(
      {{"model.layers.*.self_attn.q_proj", "colwise"},
       {"model.layers.*.self_attn.k_proj", "colwise"},
       {"model.layers.*.self_attn.v_proj", "colwise"},
       {"model.layers.*.self_attn.o_proj", "rowwise"},
       {"model.layers.*.mlp.gate_proj", "colwise"},
       {"model.layers.*.mlp.up_proj", "colwise"},
       {"model.layers.*.mlp.down_proj", "rowwise"},
       {"model.embed_tokens", "embedding_rowwise"},
       {"lm_head", "colwise_gather_output"}});
}

Training divided(std::vector<std::string> target_modules) {
  Training run{.num_ranks = 2};
  run.options.parallel.tensor = 2;
  run.options.parallel.parallelize_plan = llama_plan();
  run.adapters.target_modules = std::move(target_modules);
  return run;
}

const std::vector<std::string> kAllLayers = {
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "embed_tokens",
    "lm_head"};

TEST(PreparedAdapters, TrainWithTensorParallelism) {
  for (const auto& targets :
       {std::vector<std::string>{"q_proj", "v_proj"},
        {"o_proj", "down_proj"},
        {"embed_tokens", "lm_head"},
        kAllLayers}) {
    SCOPED_TRACE(targets.front());
    Training run = divided(targets);
    const auto plain = plain_losses(run);
    expect_near(losses_of(run), plain, 2e-5);
    run.options.parallel.activation_checkpointing =
        ActivationCheckpointingOptions{
            .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
            .transformer_cls_names_to_wrap = {"LlamaDecoderLayer"}};
    expect_near(losses_of(run), plain, 2e-5);
  }
}

TEST(PreparedAdapters, TrainWithTensorParallelismInReplicasAndShards) {
  Training run = divided(kAllLayers);
  const auto plain = plain_losses(run);
  run.num_ranks = 4;
  expect_near(losses_of(run), plain, 2e-5);
  run.options.parallel.fully_sharded = sharded();
  expect_near(losses_of(run), plain, 2e-5);
}

TEST(PreparedAdapters, HaveSlicesOfTheMatrixBesideTheDividedDimension) {
  Training run = divided({"q_proj", "o_proj", "embed_tokens"});
  run.then = [](Accelerator&, ExportedModel& net, const auto&) {
    const auto sizes_of = [&](const std::string& name) {
      return net->named_parameters()[name].sizes().vec();
    };
    using ::testing::ElementsAre;
    const std::string attention = "model.layers.0.self_attn.";
    EXPECT_THAT(
        sizes_of(attention + "q_proj.lora_A.default.weight"),
        ElementsAre(4, 16));
    EXPECT_THAT(
        sizes_of(attention + "q_proj.lora_B.default.weight"),
        ElementsAre(8, 4));
    EXPECT_THAT(
        sizes_of(attention + "o_proj.lora_A.default.weight"),
        ElementsAre(4, 8));
    EXPECT_THAT(
        sizes_of(attention + "o_proj.lora_B.default.weight"),
        ElementsAre(16, 4));
    EXPECT_THAT(
        sizes_of("model.embed_tokens.lora_embedding_A.default"),
        ElementsAre(4, 64));
  };
  losses_of(run);
}

// What the ranks of a divided run have learnt, in a model of its own.
TEST(PreparedAdapters, AreSavedAndMergedFromSlices) {
  const TemporaryDirectory directory;
  torch::Tensor expected;
  Training run = divided(kAllLayers);
  run.then = [&](Accelerator& accelerator, ExportedModel& net, auto& model) {
    expect_error<ConfigError>(
        [&] { save_adapters(net, directory / "refused"); },
        "must be complete, but ranks have slices of it");
    expect_error<ConfigError>(
        [&] { merge_adapters(net); },
        "must be complete, but ranks have slices of it");
    expect_error<ConfigError>(
        [&] { add_adapters(net, run.adapters, "second"); },
        "must be added before prepare()");
    const torch::NoGradGuard no_grad;
    const auto ids = batch_of(0);
    const auto output = [&] {
      return model(ids, torch::ones_like(ids), ids)["logits"];
    };
    const torch::Tensor before = output();
    const WeightList weights = model.state_dict();
    if (accelerator.is_main_process()) {
      save_adapters(net, directory / "adapter", "default", weights);
      expected = before;
    }
    {
      const auto full = model.full_parameters();
      EXPECT_TRUE(torch::allclose(output_of(net), before, 1e-4, 1e-5));
      merge_adapters(net);
      EXPECT_TRUE(torch::allclose(output_of(net), before, 1e-4, 1e-5));
    }
    EXPECT_TRUE(torch::allclose(output(), before, 1e-4, 1e-5));
    const auto full = model.full_parameters();
    unmerge_adapters(net);
  };
  losses_of(run);
  ExportedModel net = load_exported(program_path("llama"));
  load_adapters(net, directory / "adapter");
  EXPECT_TRUE(torch::allclose(output_of(net), expected, 1e-4, 1e-5));
}

TEST(PreparedAdapters, RefusePlansThatDivideWhatTheyNeedInFull) {
  const auto expect_refused = [](const Training& run,
                                 const std::string& phrase) {
    expect_error<ConfigError>([&] { losses_of(run); }, phrase);
  };
  Training run = divided({"q_proj", "o_proj"});
  run.adapters.use_dora = true;
  expect_refused(
      run,
      "parallelize_plan cannot divide these layers with adapters: "
      "\"model.layers.0.self_attn.q_proj\" must not have adapters with "
      "use_dora");
  run = divided({"q_proj"});
  run.adapters.modules_to_save = {"lm_head"};
  expect_refused(
      run, "\"lm_head\" must not have a trained copy (modules_to_save)");
  run = divided({"q_proj", "down_proj"});
  const Shard sequence{1};
  run.options.parallel.parallelize_plan = ParallelizePlan{
      {"model.embed_tokens", RowwiseParallel{.output_layouts = sequence}},
      {"model.layers.*.self_attn.o_proj",
       RowwiseParallel{.output_layouts = sequence}},
      {"model.layers.*.self_attn.?_proj",
       ColwiseParallel{.input_layouts = sequence}},
      {"model.layers.*.mlp.down_proj",
       RowwiseParallel{.output_layouts = sequence}},
      {"model.layers.*.mlp.*_proj", ColwiseParallel{.input_layouts = sequence}},
      {"lm_head",
       ColwiseParallel{
           .input_layouts = sequence, .output_layouts = Replicate{}}}};
  expect_refused(run, "rather than of a sequence");
}

// A sharded run's adapter, and its merged weights, in a model of their own.
TEST(PreparedAdapters, AreSavedFromShards) {
  const TemporaryDirectory directory;
  torch::Tensor expected;
  Training run{.num_ranks = 2};
  run.options.parallel.fully_sharded = sharded();
  run.then = [&](Accelerator& accelerator, ExportedModel& net, auto& model) {
    if (accelerator.is_main_process()) {
      expect_error<ConfigError>(
          [&] { save_adapters(net, directory / "refused"); },
          "must be complete, but is sharded or offloaded");
    }
    const WeightList weights = model.state_dict();
    const auto full = model.full_parameters();
    if (!accelerator.is_main_process()) {
      merge_adapters(net);
      return;
    }
    save_adapters(net, directory / "adapter", "default", weights);
    expected = output_of(net);
    merge_adapters(net);
    EXPECT_TRUE(torch::allclose(output_of(net), expected, 1e-4, 1e-5));
  };
  losses_of(run);
  ExportedModel net = load_exported(program_path("llama"));
  load_adapters(net, directory / "adapter");
  EXPECT_TRUE(torch::allclose(output_of(net), expected, 1e-5, 1e-6));
  merge_and_unload(net);
  save_model(*net, directory / "merged");
  ExportedModel base = load_exported(program_path("llama"));
  load_model(*base, directory / "merged");
  EXPECT_TRUE(torch::equal(output_of(base), output_of(net)));
  EXPECT_TRUE(torch::allclose(output_of(base), expected, 1e-4, 1e-5));
}

TEST(PreparedAdapters, OfGraphsWithoutWeightsGetTheseAfterPrepare) {
  const TemporaryDirectory directory;
  ExportedModel whole = load_exported(program_path("llama"));
  save_model(*whole, directory.path());
  const auto plain = plain_losses();
  run_on_ranks(2, [&](const WorldOptions& world) {
    AcceleratorOptions options{.world = world};
    options.parallel.fully_sharded = sharded();
    Accelerator accelerator(options);
    ExportedModel net =
        load_exported(program_path("llama"), {.weights = false});
    add_adapters(net, Training{}.adapters);
    fill_adapters(*net);
    torch::optim::SGD sgd(trained(*net), 0.5);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.load_model(
        model, directory.path(), {.allow_missing = {"*lora_*"}});
    for (int step = 0; step < kSteps; ++step) {
      const auto ids =
          batch_of(step).chunk(2)[accelerator.process_index()].contiguous();
      optimizer.zero_grad();
      const auto loss = model(ids, torch::ones_like(ids), ids)["loss"];
      accelerator.backward(loss);
      optimizer.step();
      const auto mean = accelerator.reduce(loss.detach(), ReduceOp::mean);
      EXPECT_NEAR(mean.item<double>(), plain[step], 5e-6);
    }
    accelerator.finish();
  });
}

}  // namespace accelerate::testing::prepared_adapters_test
