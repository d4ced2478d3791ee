// Plans that are inferred from a model's structure: what they split and why,
// and that models train with them as in one process.
#include <accelerate/accelerate.h>

#include "parallel/tensor/divide_sequences.h"
#include "support/expect_error.h"
#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace inferred_plan_test {

using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::HasSubstr;
using testing::named;
using testing::run_on_ranks;
using testing::Weights;
using torch::Tensor;
namespace nn = torch::nn;

std::vector<std::string> lines_of(const InferredPlan& inferred) {
  std::vector<std::string> lines;
  std::istringstream text(inferred.explain());
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  return lines;
}

const ColwiseParallel kGathered{.output_layouts = Replicate{}};
// Attention with two heads, and its last layer.
const ColwiseParallel kByHeads{};
const RowwiseParallel kOfHeads{.num_heads = 2};

/// Makes `layer` use another module's weight.
struct Tying : nn::LinearImpl {
  static void tie(nn::LinearImpl& layer, const Tensor& weight) {
    layer.weight = weight;
    (layer.*&Tying::parameters_)["weight"] = weight;
  }
};

/// A single module whose layers are recognized by their names and shapes.
struct Llama : nn::Module {
  Llama() {
    const auto linear = [](std::int64_t in, std::int64_t out) {
      return nn::Linear(nn::LinearOptions(in, out).bias(false));
    };
    embed = register_module("embed", nn::Embedding(40, 6));
    places = register_module("places", nn::Embedding(4, 6));
    q_proj = register_module("q_proj", linear(6, 6));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    gate_proj = register_module("gate_proj", linear(6, 12));
    up_proj = register_module("up_proj", linear(6, 12));
    down_proj = register_module("down_proj", linear(12, 6));
    head = register_module("head", linear(6, 40));
    Tying::tie(*head, embed->weight);
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = embed(tokens) + places(torch::arange(tokens.size(1)));
    x = x + torch::softmax(q_proj(x), -1);
    const Tensor y = norm(x);
    return head(x + down_proj(torch::silu(gate_proj(y)) * up_proj(y)));
  }
  static Tensor inputs(int step) {
    return (torch::arange(12) * 7 + step).remainder(40).view({3, 4});
  }
  nn::Embedding embed{nullptr}, places{nullptr};
  nn::Linear q_proj{nullptr}, gate_proj{nullptr}, up_proj{nullptr},
      down_proj{nullptr}, head{nullptr};
  nn::LayerNorm norm{nullptr};
};

Tensor waves(int step, at::IntArrayRef shape) {
  return torch::sin(torch::arange(c10::multiply_integers(shape), torch::kFloat)
                        .mul(0.9)
                        .add(step)
                        .view(shape));
}

/// Attention to itself and to other positions.
struct Decoder : nn::Module {
  Decoder() { register_module("decoder", decoder); }
  Tensor forward(const Tensor& x) {
    return decoder(x, torch::cos(x).narrow(0, 0, 2));
  }
  static Tensor inputs(int step) { return waves(step, {4, 3, 8}); }
  nn::TransformerDecoder decoder{nn::TransformerDecoderOptions(
      nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(12).dropout(0),
      2)};
};

struct Encoder : nn::Module {
  Encoder() { register_module("encoder", encoder); }
  Tensor forward(const Tensor& x) { return encoder(x); }
  static Tensor inputs(int step) { return waves(step, {4, 3, 8}); }
  nn::TransformerEncoder encoder{nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(8, 2)
          .dim_feedforward(12)
          .dropout(0)
          .activation(torch::kGELU),
      1)};
};

nn::Sequential make_sequential() {
  return nn::Sequential(
      nn::Linear(6, 8),
      nn::GELU(),
      nn::Dropout(0.0),
      nn::Linear(8, 7),
      nn::Linear(7, 9),
      nn::Softmax(-1),
      nn::Linear(9, 5),
      nn::LayerNorm(nn::LayerNormOptions({5})),
      nn::Linear(5, 2));
}

struct Layers : nn::Module {
  Layers() { register_module("layers", layers); }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  static Tensor inputs(int step) { return waves(step, {4, 6}); }
  nn::Sequential layers = make_sequential();
};

TEST(InferredPlan, FollowsLayersOfTransformers) {
  const nn::TransformerEncoder encoder(nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12), 1));
  EXPECT_EQ(
      infer_parallelize_plan(*encoder, 2).plan,
      (ParallelizePlan{
          {"layers.0.self_attn", kByHeads},
          {"layers.0.self_attn.out_proj", kOfHeads},
          {"layers.0.linear1", ColwiseParallel{}},
          {"layers.0.linear2", RowwiseParallel{}}}));
  const nn::TransformerDecoderLayer decoder(8, 2);
  EXPECT_EQ(infer_parallelize_plan(*decoder, 2).plan.size(), 6u);
}

// The heads do not divide among the ranks.
TEST(InferredPlan, SaysWhyEachRankComputesAllHeads) {
  const nn::TransformerEncoderLayer few(8, 2);
  const InferredPlan inferred = infer_parallelize_plan(*few, 4, true);
  EXPECT_EQ(
      inferred.plan[0],
      (std::pair<std::string, ParallelStyle>("self_attn", kGathered)));
  EXPECT_EQ(
      inferred.plan[1].second,
      ParallelStyle(RowwiseParallel{.input_layouts = Replicate{}}));
  EXPECT_THAT(
      inferred.explain(),
      HasSubstr("self_attn: ColwiseParallel, output_layouts Replicate "
                "(projections; 2 heads are fewer than 4 ranks, so they are "
                "gathered, and each rank computes all heads)"));
  const nn::Sequential separate(nn::MultiheadAttention(
      nn::MultiheadAttentionOptions(8, 2).kdim(4).vdim(4)));
  EXPECT_EQ(
      infer_parallelize_plan(*separate, 2).plan[0],
      (std::pair<std::string, ParallelStyle>("0", kByHeads)));
  EXPECT_THAT(
      infer_parallelize_plan(*separate, 4).explain(),
      HasSubstr("0: whole (2 heads are fewer than 4 ranks, and its projections "
                "are separate)"));
}

TEST(InferredPlan, GathersBeforeAnActivationThatIsNotKnown) {
  const nn::TransformerEncoderLayer layer(
      nn::TransformerEncoderLayerOptions(8, 2).activation(
          [](const Tensor& x) { return torch::softmax(x, -1); }));
  const ParallelizePlan plan = infer_parallelize_plan(*layer, 2).plan;
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_EQ(
      plan[2], (std::pair<std::string, ParallelStyle>("linear1", kGathered)));
  EXPECT_EQ(
      plan[3], (std::pair<std::string, ParallelStyle>("linear2", kGathered)));
}

TEST(InferredPlan, PairsLayersOfASequential) {
  EXPECT_THAT(
      lines_of(infer_parallelize_plan(*make_sequential(), 3)),
      ElementsAre(
          "0: ColwiseParallel (3 takes its outputs one by one: only "
          "activations are between)",
          "3: RowwiseParallel (takes slices of 0)",
          "4: ColwiseParallel, output_layouts Replicate (gathered, since what "
          "follows is not known)",
          "6: ColwiseParallel, output_layouts Replicate (gathered, since what "
          "follows is not known)",
          "7: whole (torch::nn::LayerNormImpl is neither a linear layer nor an "
          "embedding)",
          "8: whole (2 outputs are fewer than 3 ranks)"));
}

TEST(InferredPlan, KnowsFeedForwardBlocksByNameAndShape) {
  const Llama net;
  EXPECT_THAT(
      lines_of(infer_parallelize_plan(net, 2)),
      ElementsAre(
          "embed: RowwiseParallel (vocabulary: each rank looks up its rows)",
          "places: whole (4 rows are few beside a table of 40)",
          "q_proj: ColwiseParallel, output_layouts Replicate (gathered, since "
          "what follows is not known)",
          "norm: whole (torch::nn::LayerNormImpl is neither a linear layer nor "
          "an embedding)",
          "gate_proj: ColwiseParallel (down_proj takes its outputs one by one: "
          "names and shapes of a feed-forward block)",
          "up_proj: ColwiseParallel (down_proj takes its outputs one by one: "
          "names and shapes of a feed-forward block)",
          "down_proj: RowwiseParallel (takes slices of up_proj)",
          "head: whole (follows the embedding \"embed\", whose weight it "
          "uses)"));
}

/// fc1 feeds two layers, or a norm over its outputs.
struct TwoHeads : nn::Module {
  explicit TwoHeads(bool has_norm) {
    register_module("fc1", nn::Linear(4, 16));
    register_module("fc2", nn::Linear(16, 4));
    if (has_norm) {
      register_module("norm", nn::LayerNorm(nn::LayerNormOptions({16})));
    } else {
      register_module("fc3", nn::Linear(16, 1));
    }
  }
};

TEST(InferredPlan, GathersWhatOtherLayersMayTake) {
  for (const bool has_norm : {false, true}) {
    const TwoHeads net(has_norm);
    for (const auto& [module, style] : infer_parallelize_plan(net).plan)
      EXPECT_EQ(style, ParallelStyle(kGathered)) << module;
  }
}

/// Modules that a plan cannot split.
struct Odd : nn::Module {
  struct Scaled : nn::LinearImpl {
    using LinearImpl::LinearImpl;
  };
  Odd() {
    register_module("twice", shared);
    register_module("again", shared);
    register_module("scaled", std::make_shared<Scaled>(4, 4));
    register_module("conv", nn::Conv1d(4, 4, 1));
    register_module(
        "bounded", nn::Embedding(nn::EmbeddingOptions(9, 4).max_norm(1)));
    register_module("few", nn::Embedding(2, 4));
    register_parameter("scale", torch::ones({4}));
  }
  nn::Linear shared{4, 4};
};

TEST(InferredPlan, LeavesTheRestWholeAndSaysWhy) {
  const InferredPlan inferred = infer_parallelize_plan(Odd(), 3);
  EXPECT_TRUE(inferred.plan.empty());
  const std::string text = inferred.explain();
  EXPECT_THAT(text, HasSubstr("(model): whole (is the model itself"));
  EXPECT_THAT(
      text, HasSubstr("twice: whole (\"again\" uses its weight as well)"));
  EXPECT_THAT(
      text, HasSubstr("again: whole (\"twice\" uses its weight as well)"));
  EXPECT_THAT(text, HasSubstr("scaled: whole"));
  EXPECT_THAT(text, HasSubstr("conv: whole (torch::nn::Conv1dImpl is neither"));
  EXPECT_THAT(text, HasSubstr("bounded: whole (has max_norm"));
  EXPECT_THAT(text, HasSubstr("few: whole (2 rows are fewer than 3 ranks)"));
  expect_error<ConfigError>(
      [] { (void)infer_parallelize_plan(Odd(), 0); }, "must be at least 1");
}

/// Counts as an activation; keeps the size of its last input.
struct Probe : nn::DropoutImpl {
  Probe() : nn::DropoutImpl(0.0) {}
  Tensor forward(const Tensor& x) {
    seen = x.sizes().vec();
    return nn::DropoutImpl::forward(x);
  }
  std::vector<std::int64_t> seen;
};

/// Two feed-forward blocks with a norm in between.
struct Blocks : nn::Module {
  Blocks() { register_module("layers", layers); }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  static Tensor inputs(int step) { return waves(step, {4, 3, 6}); }
  std::shared_ptr<Probe> probe = std::make_shared<Probe>();
  nn::Sequential layers{
      nn::Linear(6, 12),
      nn::GELU(),
      nn::Linear(12, 6),
      nn::LayerNorm(nn::LayerNormOptions({6})),
      probe,
      nn::Linear(6, 9),
      nn::ReLU(),
      nn::Linear(9, 5)};
};

TEST(InferredPlan, DividesSequencesBetweenPairs) {
  const Blocks net;
  ParallelizePlan plan = infer_parallelize_plan(net, 2).plan;
  EXPECT_TRUE(detail::divide_sequences(net, plan));
  const auto style_of = [&](const std::string& name) {
    for (const auto& [module, style] : plan)
      if (module == name) return style;
    throw std::runtime_error(name + " has no style");
  };
  EXPECT_EQ(
      style_of("layers.2"),
      ParallelStyle(RowwiseParallel{.output_layouts = Shard{-2}}));
  EXPECT_EQ(style_of("layers.3"), ParallelStyle(SequenceParallel{}));
  EXPECT_EQ(
      style_of("layers.5"),
      ParallelStyle(ColwiseParallel{.input_layouts = Shard{-2}}));
  EXPECT_EQ(style_of("layers.7"), ParallelStyle(RowwiseParallel{}));
  EXPECT_EQ(plan.size(), 5u);  // and layers.0
}

// From the norm before the feed-forward to the one after it.
TEST(InferredPlan, DividesSequencesInLayersOfTransformers) {
  const nn::TransformerEncoderLayer encoder(
      nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12));
  EXPECT_EQ(
      infer_parallelize_plan(*encoder, 2, /*sequence_parallel=*/true).plan,
      (ParallelizePlan{
          {"self_attn", kByHeads},
          {"self_attn.out_proj", kOfHeads},
          {"linear1", ColwiseParallel{.input_layouts = Shard{0}}},
          {"linear2", RowwiseParallel{.output_layouts = Shard{0}}},
          {"norm1", PrepareModuleInput{Replicate{}, Shard{0}}},
          {"norm2", PrepareModuleOutput{Shard{0}, Replicate{}}}}));
  const nn::TransformerDecoderLayer decoder(8, 2);
  const InferredPlan inferred = infer_parallelize_plan(*decoder, 2, true);
  EXPECT_EQ(inferred.plan.size(), 8u);
  const std::string text = inferred.explain();
  EXPECT_THAT(
      text, HasSubstr("norm2: PrepareModuleInput, Replicate to Shard(0) ("));
  EXPECT_THAT(
      text, HasSubstr("norm3: PrepareModuleOutput, Shard(0) to Replicate ("));
  EXPECT_THAT(
      text, HasSubstr("linear2: RowwiseParallel, output_layouts Shard(0) ("));
  EXPECT_THAT(text, HasSubstr("norm1: whole"));
}

// The next layer's attention takes the slices that a layer returns.
TEST(InferredPlan, PassesSlicesFromLayerToLayer) {
  const nn::TransformerEncoder encoder(
      nn::TransformerEncoderOptions(nn::TransformerEncoderLayer(8, 2), 2)
          .norm(nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({8})))));
  const auto styles_of = [](const nn::Module& net) {
    std::map<std::string, ParallelStyle> styles;
    for (const auto& [name, style] :
         infer_parallelize_plan(net, 2, /*sequence_parallel=*/true).plan)
      styles.emplace(name, style);
    return styles;
  };
  const Shard sequence{0};
  auto styles = styles_of(*encoder);
  const auto expect_style = [&](const std::string& name, ParallelStyle style) {
    EXPECT_EQ(styles.at(name), style) << name;
  };
  const ColwiseParallel next{.input_layouts = sequence};
  const RowwiseParallel next_out{.output_layouts = sequence, .num_heads = 2};
  const PrepareModuleOutput gather{sequence, Replicate{}};
  expect_style("layers.0.self_attn", kByHeads);
  expect_style("layers.0.self_attn.out_proj", kOfHeads);
  expect_style("layers.0.norm1", PrepareModuleInput{Replicate{}, sequence});
  expect_style("layers.0.norm2", SequenceParallel{});
  expect_style("layers.1.self_attn", next);
  expect_style("layers.1.self_attn.out_proj", next_out);
  expect_style("layers.1.norm1", SequenceParallel{});
  expect_style("layers.1.norm2", SequenceParallel{});
  expect_style("norm", gather);
  // A decoder attends to its encoder with all positions.
  const nn::TransformerDecoder decoder(nn::TransformerDecoderLayer(8, 2), 2);
  styles = styles_of(*decoder);
  expect_style("layers.0.self_attn", kByHeads);
  EXPECT_EQ(styles.count("layers.0.norm1"), 0u);
  expect_style("layers.0.norm3", SequenceParallel{});
  expect_style("layers.1.self_attn", next);
  expect_style("layers.1.self_attn.out_proj", next_out);
  expect_style("layers.1.norm1", gather);
  expect_style("layers.1.norm2", PrepareModuleInput{Replicate{}, sequence});
  expect_style("layers.1.norm3", gather);
}

// Places where other code could see the slices, or where there would be none.
TEST(InferredPlan, LeavesSequencesWholeElsewhere) {
  const auto divides = [](const nn::Module& net) {
    ParallelizePlan plan = infer_parallelize_plan(net, 2).plan;
    const ParallelizePlan before = plan;
    const bool found = detail::divide_sequences(net, plan);
    EXPECT_EQ(plan == before, !found);
    return found;
  };
  const auto with = [&](const auto& between, std::int64_t width = 4) {
    return divides(*nn::Sequential(
        nn::Linear(4, 8),
        nn::ReLU(),
        nn::Linear(8, 4),
        between,
        nn::Linear(width, 8),
        nn::ReLU(),
        nn::Linear(8, 4)));
  };
  EXPECT_TRUE(with(nn::LayerNorm(nn::LayerNormOptions({4}))));
  EXPECT_TRUE(with(nn::Dropout(0.5)));
  EXPECT_FALSE(with(nn::LayerNorm(nn::LayerNormOptions({3, 4}))));
  EXPECT_FALSE(with(nn::BatchNorm1d(4)));
  EXPECT_FALSE(with(nn::Softmax(-2)));
  EXPECT_FALSE(divides(*make_sequential()));
  nn::Sequential shared(
      nn::Linear(4, 8),
      nn::ReLU(),
      nn::Linear(8, 4),
      nn::LayerNorm(nn::LayerNormOptions({4})),
      nn::Linear(4, 8),
      nn::ReLU(),
      nn::Linear(8, 4));
  EXPECT_TRUE(divides(*shared));
  shared->push_back(shared->ptr<nn::LayerNormImpl>(3));
  EXPECT_FALSE(divides(*shared));
}

struct Outcome {
  std::vector<double> losses;
  Weights weights;
};

template <class Net>
Outcome train(const ParallelOptions& parallel, const WorldOptions& world) {
  const Accelerator accelerator({.parallel = parallel, .world = world});
  const auto net = std::make_shared<Net>();
  {
    // Ranks that are threads share one generator.
    const torch::NoGradGuard no_grad;
    int number = 0;
    for (const Tensor& parameter : net->parameters())
      parameter.copy_(waves(37 * number++, parameter.sizes()) * 0.4);
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  const auto [model, optimizer] = accelerator.prepare(net, sgd);
  Outcome outcome;
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    const Tensor output = model(Net::inputs(step));
    const Tensor weights = torch::cos(torch::arange(output.size(-1)));
    const Tensor loss = (output * weights).sum(-1).pow(2).mean();
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    outcome.losses.push_back(loss.template item<double>());
  }
  outcome.weights =
      named(accelerator.get_state_dict(model, {.rank0_only = false}));
  return outcome;
}

template <class Net>
class InferredPlanOf : public ::testing::Test {};
using InferredNets = ::testing::Types<Llama, Decoder, Encoder, Layers>;
TYPED_TEST_SUITE(InferredPlanOf, InferredNets);

TYPED_TEST(InferredPlanOf, TrainsAsOneProcessDoes) {
  Outcome expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    expected = train<TypeParam>({}, world);
  });
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    const ParallelizePlan plan =
        infer_parallelize_plan(*std::make_shared<TypeParam>(), ranks).plan;
    run_on_ranks(ranks, [&](const WorldOptions& world) {
      const Outcome found =
          train<TypeParam>({.tensor = ranks, .parallelize_plan = plan}, world);
      for (std::size_t step = 0; step < expected.losses.size(); ++step)
        EXPECT_NEAR(found.losses[step], expected.losses[step], 2e-5);
      for (const auto& [name, weight] : expected.weights) {
        EXPECT_TRUE(torch::allclose(found.weights.at(name), weight, 2e-5, 2e-5))
            << name;
      }
    });
  }
}

TEST(InferredPlan, IsThatOfEnginesThatSplitModels) {
  Outcome expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    expected = train<Llama>({}, world);
  });
  DeepSpeedOptions deepspeed;
  deepspeed.hf_ds_config =
      R"({"zero_optimization": {"stage": 2}, "gradient_clipping": 0,
          "tensor_parallel": {"autotp_size": 2}})";
  const MegatronLMOptions megatron{.tp_degree = 2, .gradient_clipping = 0};
  for (const ParallelOptions& parallel :
       {ParallelOptions{.deepspeed = deepspeed},
        ParallelOptions{.megatron_lm = megatron}}) {
    run_on_ranks(4, [&](const WorldOptions& world) {
      const Outcome found = train<Llama>(parallel, world);
      for (const auto& [name, weight] : expected.weights) {
        EXPECT_TRUE(torch::allclose(found.weights.at(name), weight, 2e-5, 2e-5))
            << name;
      }
    });
    run_on_ranks(4, [&](const WorldOptions& world) {
      const Accelerator accelerator({.parallel = parallel, .world = world});
      EXPECT_EQ(accelerator.mesh().degree(Axis::tensor), 2);
      const auto own = std::make_shared<Llama>(),
                 inferred = std::make_shared<Llama>(),
                 none = std::make_shared<Llama>();
      const auto models = accelerator.prepare(
          inferred,
          with_options(
              own,
              {.parallelize_plan =
                   ParallelizePlan{{"q_proj", RowwiseParallel{}}}}),
          with_options(none, {.parallelize_plan = ParallelizePlan{}}));
      EXPECT_EQ(inferred->up_proj->weight.size(0), 6);
      EXPECT_EQ(own->up_proj->weight.size(0), 12);
      EXPECT_EQ(own->q_proj->weight.size(1), 3);
      EXPECT_EQ(none->up_proj->weight.size(0), 12);
    });
  }
}

// Megatron-LM's sequence_parallelism trains as one process does, but on slices
// of the three positions.
TEST(InferredPlan, DividesSequencesIfMegatronSaysSo) {
  Outcome expected;
  run_on_ranks(1, [&](const WorldOptions& world) {
    expected = train<Blocks>({}, world);
  });
  for (const int ranks : {2, 3}) {
    SCOPED_TRACE(ranks);
    run_on_ranks(ranks, [&](const WorldOptions& world) {
      const ParallelOptions parallel{
          .megatron_lm = MegatronLMOptions{
              .tp_degree = ranks,
              .gradient_clipping = 0,
              .sequence_parallelism = true}};
      const Outcome found = train<Blocks>(parallel, world);
      for (std::size_t step = 0; step < expected.losses.size(); ++step)
        EXPECT_NEAR(found.losses[step], expected.losses[step], 2e-5);
      for (const auto& [name, weight] : expected.weights) {
        EXPECT_TRUE(torch::allclose(found.weights.at(name), weight, 2e-5, 2e-5))
            << name;
      }
    });
    run_on_ranks(ranks, [&](const WorldOptions& world) {
      const auto seen_with = [&](std::optional<bool> divides) {
        const Accelerator accelerator(
            {.parallel =
                 {.megatron_lm =
                      MegatronLMOptions{
                          .tp_degree = ranks, .sequence_parallelism = divides}},
             .world = world});
        const auto net = std::make_shared<Blocks>();
        const auto model = accelerator.prepare(net);
        model(Blocks::inputs(0));
        return net->probe->seen;
      };
      const std::int64_t own = ranks == 2 && *world.rank == 1 ? 2 : 1;
      EXPECT_THAT(seen_with(true), ElementsAre(4, own, 6));
      EXPECT_THAT(seen_with(false), ElementsAre(4, 3, 6));
    });
  }
}

TEST(InferredPlan, WarnsIfThereIsNoPlaceToDivideSequences) {
  run_on_ranks(2, [](WorldOptions world) {
    std::vector<std::string> warnings;
    world.logger = Logger(
        [&](const LogRecord& record) {
          warnings.push_back(std::string(record.message));
        },
        LogLevel::warning);
    const Accelerator accelerator(
        {.parallel =
             {.megatron_lm =
                  MegatronLMOptions{
                      .tp_degree = 2, .sequence_parallelism = true}},
         .world = world});
    accelerator.prepare(std::make_shared<Llama>());
    ASSERT_EQ(warnings.size(), *world.rank == 0 ? 1u : 0u);
    for (const std::string& warning : warnings)
      EXPECT_THAT(warning, HasSubstr("sequence_parallelism is set, but"));
  });
}

}  // namespace inferred_plan_test
}  // namespace accelerate
