// Pipelines of exported models: their stages train as one process does.
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include <accelerate/accelerate.h>
#include <accelerate/exported_pipeline.h>
#include <gmock/gmock.h>

#include "exported/recorded_program.h"
#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate::testing::pipelines_test {

using ::testing::ElementsAre;

constexpr int kSteps = 3;
constexpr std::int64_t kRows = 8;

torch::Tensor ids_of(int step, std::int64_t length = 8) {
  auto generator = at::detail::createCPUGenerator(7 + step);
  return torch::randint(0, 64, {kRows, length}, generator, torch::kLong);
}

// Ids, and for programs that compute their loss a mask and labels.
PipelineTensors inputs_of(
    const std::string& program,
    const torch::Tensor& ids) {
  if (program == "gpt2") return {ids};
  return {ids, torch::ones_like(ids), ids.clone()};
}

torch::Tensor loss_in(const PipelineTensors& outputs) {
  return outputs.size() > 1 ? outputs[0] : outputs[0].square().mean();
}

torch::Tensor program_loss(
    const PipelineTensors& outputs,
    const PipelineTensors&) {
  return loss_in(outputs);
}

// GPT-2 has dropout, whose random numbers ranks draw differently.
ExportedModel load(const std::string& program, bool weights = true) {
  ExportedModel net =
      load_exported(program_path(program), {.weights = weights});
  if (program == "gpt2") net->eval();
  return net;
}

struct Trained {
  std::vector<double> losses;
  Weights weights;
  Weights gradients;
};

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

// `backwards`: from the last micro-batch to the first.
Trained train_alone(
    const std::string& program,
    int num_micro_batches,
    bool backwards = false) {
  ExportedModel net = load(program);
  torch::optim::SGD sgd(net->parameters(), sgd_options());
  Trained trained;
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    torch::Tensor total = torch::zeros({});
    std::vector<torch::Tensor> losses;
    for (const auto& ids : ids_of(step).chunk(num_micro_batches)) {
      std::vector<c10::IValue> inputs;
      for (const auto& tensor : inputs_of(program, ids))
        inputs.emplace_back(tensor);
      const auto loss = loss_in(net->forward(inputs).tensors());
      losses.push_back(loss / num_micro_batches);
      total = total + losses.back().detach();
      if (!backwards) losses.back().backward();
    }
    for (std::size_t i = losses.size(); backwards && i-- > 0;)
      losses[i].backward();
    trained.losses.push_back(total.item<double>());
    for (const auto& item : net->named_parameters())
      if (item.value().grad().defined())
        trained.gradients[item.key()] = item.value().grad().clone();
    sgd.step();
  }
  for (const auto& item : net->named_parameters())
    trained.weights[item.key()] = item.value().detach().clone();
  return trained;
}

struct Setting {
  std::string program = "llama";
  int num_ranks = 2;
  /// Ranks of the pipeline; unset: all.
  std::optional<int> num_stage_ranks = std::nullopt;
  PipelineOptions options = {.num_micro_batches = 2};
  AcceleratorOptions accelerator = {};
  std::function<void(Accelerator&, const Pipeline&)> then = {};
};

Trained train_in_stages(const Setting& setting) {
  Trained trained;
  std::mutex mutex;
  run_on_ranks(setting.num_ranks, [&](const WorldOptions& world) {
    AcceleratorOptions options = setting.accelerator;
    options.parallel.pipeline =
        setting.num_stage_ranks.value_or(setting.num_ranks);
    options.world = world;
    Accelerator accelerator(options);
    const Pipeline pipeline =
        make_pipeline(accelerator, load(setting.program), setting.options);
    torch::optim::SGD sgd(pipeline.parameters(), sgd_options());
    auto optimizer = accelerator.prepare(sgd);
    const bool has_shards = options.parallel.fully_sharded.has_value() ||
        options.parallel.tensor.has_value();
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const auto result = pipeline.step(
          inputs_of(setting.program, ids_of(step)),
          PipelineTensors(),
          &program_loss);
      losses.push_back(result.loss.item<double>());
      const std::lock_guard lock(mutex);
      for (const auto& item : pipeline.model().named_parameters())
        if (!has_shards && item.value().grad().defined())
          trained.gradients[item.key()] = item.value().grad().clone();
      optimizer.step();
    }
    {
      const std::lock_guard lock(mutex);
      trained.losses = losses;
      for (const auto& item : pipeline.model().named_parameters())
        if (!has_shards)
          trained.weights[item.key()] = item.value().detach().clone();
    }
    if (setting.then) setting.then(accelerator, pipeline);
    accelerator.finish();
  });
  return trained;
}

void expect_all_equal(const Weights& actual, const Weights& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    expect_same(actual.at(name), tensor, name);
  }
}

void expect_equal(const Trained& actual, const Trained& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  expect_all_equal(actual.gradients, expected.gradients);
  expect_all_equal(actual.weights, expected.weights);
}

TEST(ExportedPipeline, EqualsOneProcessWithEverySchedule) {
  const std::tuple<const char*, int, int> schedules[] = {
      {"GPipe", 2, 1},
      {"1F1B", 2, 1},
      {"1F1B", 3, 1},
      {"Interleaved1F1B", 2, 2},
      {"LoopedBFS", 2, 2},
      {"ZBH1", 4, 1},
      {"ZBVZeroBubble", 2, 2},
      {"DualPipeV", 2, 2}};
  const auto alone = train_alone("llama", 4);
  for (const auto& [name, num_ranks, num_chunks] : schedules) {
    SCOPED_TRACE(name);
    const auto in_stages = train_in_stages(
        {.num_ranks = num_ranks,
         .options = {
             .schedule = parse_pipeline_schedule(name),
             .num_chunks = num_chunks,
             .num_micro_batches = 4}});
    if (std::string(name) == "LoopedBFS") {
      expect_equal(in_stages, train_alone("llama", 4, /*backwards=*/true));
    } else {
      expect_equal(in_stages, alone);
    }
  }
}

TEST(ExportedPipeline, EqualsOneProcessBitForBit) {
  for (const std::string program : {"llama", "gpt2", "mistral"}) {
    for (const int num_ranks : {1, 2, 3}) {
      SCOPED_TRACE(program + " on " + std::to_string(num_ranks));
      expect_equal(
          train_in_stages(
              {.program = program,
               .num_ranks = num_ranks,
               .options = {.num_micro_batches = 1}}),
          train_alone(program, 1));
    }
  }
}

TEST(ExportedPipeline, SplitsWhereItIsTold) {
  for (const std::vector<std::string>& points :
       {std::vector<std::string>{"model.layers.1", "lm_head"},
        {"model.layers.0.mlp", "model.layers.1.self_attn.v_proj"}}) {
    Setting setting{.num_ranks = 3};
    setting.options.split_points = points;
    setting.then = [&](Accelerator&, const Pipeline& pipeline) {
      EXPECT_THAT(
          pipeline.stages(),
          ElementsAre(
              ElementsAre("model.embed_tokens"),
              ElementsAre(points[0]),
              ElementsAre(points[1])));
    };
    expect_equal(train_in_stages(setting), train_alone("llama", 2));
  }
}

TEST(ExportedPipeline, BalancesItsStages) {
  Setting setting;
  setting.then = [](Accelerator&, const Pipeline& pipeline) {
    EXPECT_THAT(
        pipeline.stages(),
        ElementsAre(
            ElementsAre("model.embed_tokens"), ElementsAre("model.layers.1")));
  };
  train_in_stages(setting);
  // Costs are those of the blocks: the embedding, two layers, the norm and the
  // head.
  setting.options.costs = {1, 1, 1, 1, 9};
  setting.then = [](Accelerator&, const Pipeline& pipeline) {
    EXPECT_THAT(
        pipeline.stages(),
        ElementsAre(ElementsAre("model"), ElementsAre("lm_head")));
  };
  train_in_stages(setting);
}

std::vector<std::string> names_in(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& item : module.named_parameters())
    names.push_back(item.key());
  return names;
}

TEST(ExportedPipeline, HasOnlyTheWeightsOfItsStage) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.pipeline = 2}, .world = world});
    ExportedModel net = load("llama");
    const Pipeline pipeline =
        make_pipeline(accelerator, net, {.split_points = {"model.layers.1"}});
    const auto is_first = [](const std::string& name) {
      return name.starts_with("model.embed_tokens") ||
          name.starts_with("model.layers.0");
    };
    for (const auto& name : names_in(*pipeline.model().module()))
      EXPECT_EQ(is_first(name), pipeline.has_first_stage()) << name;
    for (const auto& item : net->named_parameters()) {
      EXPECT_EQ(
          item.value().is_meta(),
          is_first(item.key()) != pipeline.has_first_stage())
          << item.key();
    }
    accelerator.finish();
  });
}

TEST(ExportedPipeline, SavesWeightsUnderPythonsNames) {
  const TemporaryDirectory directory;
  for (const std::string program : {"llama", "gpt2"}) {
    const auto path = directory / program;
    Setting setting{.program = program, .num_ranks = 3};
    setting.then = [&](Accelerator& accelerator, const Pipeline& pipeline) {
      accelerator.save_model(pipeline.model(), path);
    };
    const auto trained = train_in_stages(setting);
    const safetensors::Reader reader(path / "model.safetensors");
    ExportedModel net = load(program, /*weights=*/false);
    EXPECT_EQ(
        reader.header().tensors.size(),
        net->named_parameters().size() + net->named_buffers().size());
    for (const auto& item : net->named_parameters())
      EXPECT_TRUE(reader.contains(item.key())) << item.key();
    // A graph alone gets each stage's weights from the files.
    run_on_ranks(2, [&](const WorldOptions& world) {
      Accelerator accelerator({.parallel = {.pipeline = 2}, .world = world});
      const Pipeline pipeline =
          make_pipeline(accelerator, load(program, /*weights=*/false));
      accelerator.load_model(pipeline.model(), path);
      for (const auto& item : pipeline.model().named_parameters())
        expect_same(item.value(), trained.weights.at(item.key()), item.key());
      accelerator.finish();
    });
  }
}

TEST(ExportedPipeline, ResumesOnAnotherNumberOfStages) {
  const TemporaryDirectory directory;
  const auto one_step = [](const Pipeline& pipeline) {
    return pipeline
        .step(inputs_of("llama", ids_of(9)), PipelineTensors(), &program_loss)
        .loss.item<double>();
  };
  double expected = 0;
  Setting setting{.num_ranks = 3};
  setting.then = [&](Accelerator& accelerator, const Pipeline& pipeline) {
    accelerator.save_state(directory / "state").wait();
    const double loss = one_step(pipeline);
    if (accelerator.is_main_process()) expected = loss;
  };
  train_in_stages(setting);
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.pipeline = 2}, .world = world});
    const Pipeline pipeline =
        make_pipeline(accelerator, load("llama"), {.num_micro_batches = 2});
    torch::optim::SGD sgd(pipeline.parameters(), sgd_options());
    auto optimizer = accelerator.prepare(sgd);
    accelerator.load_state(directory / "state");
    EXPECT_EQ(one_step(pipeline), expected);
    accelerator.finish();
  });
}

TEST(ExportedPipeline, TrainsShardedAndRecomputedStages) {
  Setting setting{.num_ranks = 4};
  FullyShardedDataParallelOptions sharded;
  sharded.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap;
  sharded.transformer_cls_names_to_wrap =
      std::vector<std::string>{"LlamaDecoderLayer"};
  sharded.activation_checkpointing = true;
  setting.accelerator.parallel.fully_sharded = sharded;
  setting.num_stage_ranks = 2;
  const auto trained = train_in_stages(setting);
  // Both shards read the same data.
  expect_near(trained.losses, train_alone("llama", 2).losses, 3e-6);
}

// Two stages, each on two ranks that compute its layers together.
TEST(ExportedPipeline, TrainsStagesWithTensorParallelism) {
  for (const std::string program : {"llama", "llama_tied", "gpt2"}) {
    SCOPED_TRACE(program);
    const bool is_gpt2 = program == "gpt2";
    const TemporaryDirectory directory;
    Setting setting{.program = program, .num_ranks = 4, .num_stage_ranks = 2};
    setting.accelerator.parallel.tensor = 2;
    if (is_gpt2) {
      setting.accelerator.parallel.parallelize_plan = ParallelizePlan{
          {"**.mlp.c_fc", ColwiseParallel{}},
          {"**.mlp.c_proj", RowwiseParallel{}}};
    } else {
      setting.accelerator.parallel.parallelize_plan =
          load("llama_tied")->tensor_parallel_plan();
      EXPECT_FALSE(setting.accelerator.parallel.parallelize_plan->empty());
    }
    setting.then = [&](Accelerator& accelerator, const Pipeline& pipeline) {
      accelerator.save_model(pipeline.model(), directory.path());
      if (is_gpt2) return;
      for (const auto& item : pipeline.model().named_parameters()) {
        if (item.key().ends_with("q_proj.weight")) {
          EXPECT_EQ(
              item.value().size(0),
              load(program)->named_parameters()[item.key()].size(0) / 2);
        }
      }
    };
    const auto trained = train_in_stages(setting);
    const auto alone = train_alone(program, 2);
    expect_near(trained.losses, alone.losses, 1e-5);
    const auto saved = load_state_dict(directory / "model.safetensors");
    for (const auto& [name, weight] : alone.weights)
      EXPECT_TRUE(saved.at(name).allclose(weight, 1e-4, 1e-5)) << name;
  }
}

// Where attention is divided, the next stage would get heads of one rank.
TEST(ExportedPipeline, RefusesStagesThatBeginBetweenDividedLayers) {
  run_on_ranks(4, [](const WorldOptions& world) {
    Accelerator accelerator(
        {.parallel =
             {.tensor = 2,
              .pipeline = 2,
              .parallelize_plan = parse_tp_plan(
                  {{"model.layers.*.mlp.gate_proj", "colwise"},
                   {"model.layers.*.mlp.up_proj", "colwise"},
                   {"model.layers.*.mlp.down_proj", "rowwise"}})},
         .world = world});
    EXPECT_THROW(
        static_cast<void>(make_pipeline(
            accelerator,
            load("llama"),
            {.split_points = {"model.layers.0.mlp.down_proj"}})),
        Error);
    accelerator.finish();
  });
}

// Ranks have copies of a buffer above their stages, and the rank that changes
// one has it alone.
TEST(ExportedPipeline, HasBuffersOfModulesAroundItsStages) {
  const Record record("BufferAbove");
  const auto input = record.at("input.0");
  const auto path_of = [] { return program_path("BufferAbove"); };
  ExportedModel whole = load_exported(path_of());
  const auto expected = whole->forward(input)[0];
  expected.square().mean().backward();
  const TemporaryDirectory directory;
  run_on_ranks(3, [&](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.pipeline = 3}, .world = world});
    const Pipeline pipeline = make_pipeline(
        accelerator,
        load_exported(path_of()),
        {.split_points = {"layers.0", "layers.2"}, .num_micro_batches = 1});
    const auto result = pipeline.step(
        PipelineTensors{input},
        PipelineTensors(),
        [](const torch::Tensor& output, const PipelineTensors&) {
          return output.square().mean();
        });
    EXPECT_EQ(
        result.loss.item<double>(), expected.square().mean().item<double>());
    const auto buffers = pipeline.model().module()->named_buffers();
    EXPECT_EQ(buffers.contains("average"), pipeline.has_first_stage());
    EXPECT_EQ(buffers.contains("scale"), !pipeline.has_first_stage());
    for (const auto& item : buffers)
      expect_same(item.value(), whole->named_buffers()[item.key()], item.key());
    for (const auto& item : pipeline.model().named_parameters())
      expect_same(
          item.value().grad(),
          whole->named_parameters()[item.key()].grad(),
          item.key());
    accelerator.save_model(pipeline.model(), directory.path());
    accelerator.finish();
  });
  const auto saved = load_state_dict(directory / "model.safetensors");
  for (const auto& item : whole->named_buffers())
    expect_same(saved.at(item.key()), item.value(), item.key());
  EXPECT_EQ(
      saved.size(),
      whole->named_parameters().size() + whole->named_buffers().size());
}

TEST(ExportedPipeline, TrainsInBf16) {
  Setting setting{.program = "llama_bf16"};
  setting.accelerator.mixed_precision = Precision::bf16;
  const auto in_stages = train_in_stages(setting);
  setting.num_ranks = 1;
  expect_equal(in_stages, train_in_stages(setting));
}

TEST(ExportedPipeline, HasTwoModesAndSequencesOfAnyLength) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.pipeline = 2}, .world = world});
    const Pipeline pipeline =
        make_pipeline(accelerator, load_exported(program_path("gpt2")));
    ExportedModel whole = load("gpt2");
    const auto loss = [&](std::int64_t length) {
      return pipeline
          .evaluate(
              ids_of(0, length),
              PipelineTensors(),
              &program_loss,
              {.shapes_may_change = length != 8})
          .loss.item<double>();
    };
    EXPECT_NE(loss(8), loss(8)) << "dropout is on";
    pipeline.eval();
    for (const std::int64_t length : {8, 8, 12, 5}) {
      double expected = 0;
      for (const auto& ids : ids_of(0, length).chunk(2)) {
        expected += loss_in(whole->forward(ids).tensors()).item<double>() / 2;
      }
      EXPECT_NEAR(loss(length), expected, 1e-7);
    }
    pipeline.train();
    EXPECT_NE(loss(8), loss(8)) << "dropout is on";
    accelerator.finish();
  });
}

TEST(ExportedPipeline, TakesInputsByNameAndGivesOutputsByName) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.pipeline = 2}, .world = world});
    const Pipeline pipeline = make_pipeline(accelerator, load("llama"));
    const auto ids = ids_of(0);
    const std::map<std::string, torch::Tensor> inputs{
        {"attention_mask", torch::ones_like(ids)},
        {"input_ids", ids},
        {"labels", ids}};
    using Outputs = std::map<std::string, torch::Tensor>;
    const auto result = pipeline.step(
        inputs,
        PipelineTensors(),
        [](const Outputs& outputs, const PipelineTensors&) {
          return outputs.at("loss");
        },
        {.gather_outputs = true});
    EXPECT_EQ(result.outputs_as<Outputs>().at("logits").size(0), kRows);
    const auto give_two = [&] {
      static_cast<void>(pipeline.forward(PipelineTensors{ids, ids}));
    };
    const std::string phrase =
        "the model must get 3 inputs (input_ids, "
        "attention_mask, labels), but gets 2";
    if (pipeline.has_first_stage()) {
      expect_error<ConfigError>(give_two, phrase);
    } else {
      expect_error<DistributedError>(give_two, phrase);
    }
    accelerator.finish();
  });
}

void expect_refused(const PipelineOptions& options, const std::string& phrase) {
  run_on_ranks(2, [&](const WorldOptions& world) {
    Accelerator accelerator({.parallel = {.pipeline = 2}, .world = world});
    expect_error<ConfigError>(
        [&] {
          static_cast<void>(make_pipeline(accelerator, load("llama"), options));
        },
        phrase);
    accelerator.finish();
  });
}

TEST(ExportedPipeline, RefusesOptionsThatDoNotFit) {
  expect_refused(
      {.split_points = {"model.layers.5"}},
      "the split point 'model.layers.5' must be a module of the program");
  expect_refused(
      {.split_points = {"model.layers.0", "model.layers.1"}},
      "2 split points make 3 stages, but there are 2");
  expect_refused({.costs = {1, 1}}, "there are 2 for 5 layers");
}

TEST(ExportedPippy, ComputesWhatTheProgramDoes) {
  for (const std::string program : {"llama", "gpt2", "vit"}) {
    const auto record = Record(program);
    PipelineTensors inputs;
    for (const auto& value : record.inputs())
      inputs.push_back(value.toTensor());
    ExportedModel whole = load_exported(program_path(program));
    whole->eval();
    const auto expected = whole->forward(record.inputs());
    for (const int num_ranks : {1, 2, 3}) {
      run_in_worlds(num_ranks, [&](const World& world) {
        ExportedModel net = load_exported(program_path(program));
        net->eval();
        const PippyModel model =
            prepare_pippy(world, net, {.num_chunks = 1, .gather_output = true});
        const auto outputs = world.rank() == 0 ? model(inputs) : model();
        ASSERT_EQ(outputs.size(), expected.size());
        expect_same(
            outputs.back(), expected.tensors().back().detach(), program);
      });
    }
  }
}

TEST(ExportedPippy, SplitsAsAccelerateDoes) {
  run_in_worlds(2, [](const World& world) {
    const auto points_of = [&](const PreparePippyOptions& options) {
      return prepare_pippy(world, load("llama"), options).hf_split_points();
    };
    EXPECT_THAT(points_of({}), ElementsAre("model.layers.0"));
    EXPECT_THAT(
        points_of({.split_points = {"auto"}}), ElementsAre("model.layers.0"));
    EXPECT_THAT(
        points_of({.split_points = {"model.norm"}}), ElementsAre("model.norm"));
    expect_error<ConfigError>(
        [&] { points_of({.split_points = {"nowhere"}}); },
        "the split point 'nowhere' must be a module of the program");
    expect_error<ConfigError>(
        [&] { points_of({.split_points = {"model.norm", "lm_head"}}); },
        "2 split points make 3 stages, but there are 2");
    const PippyModel model = prepare_pippy(
        world, load("llama"), {.split_points = {"model.layers.1"}});
    for (const std::string& name : names_in(*model.module())) {
      const bool is_first = name.starts_with("model.embed_tokens") ||
          name.starts_with("model.layers.0");
      EXPECT_EQ(is_first, world.rank() == 0) << name;
    }
  });
}

}  // namespace accelerate::testing::pipelines_test
