// Stages that begin and end inside a stack of Transformer layers, where ranks
// along tensor work on slices of the sequence: the slices are sent from stage
// to stage.
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <accelerate/accelerator.h>
#include <accelerate/megatron_lm.h>
#include <accelerate/pipeline.h>
#include <accelerate/tensor_parallel.h>

#include "support/named_weights.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace pipeline_sequences_test {

namespace nn = torch::nn;
using at::Tensor;
using testing::run_on_ranks;
using testing::Weights;

constexpr std::int64_t kWidth = 8, kHeads = 4, kRows = 8;
constexpr int kLayers = 4, kSteps = 3, kTensor = 2;

Tensor waves(double phase, std::vector<std::int64_t> shape) {
  return torch::sin(torch::arange(c10::multiply_integers(shape), torch::kFloat)
                        .mul(0.37)
                        .add(phase))
      .view(shape);
}

Tensor causal(std::int64_t time) {
  return nn::TransformerImpl::generate_square_subsequent_mask(time);
}

nn::AnyModule norm() {
  return nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({kWidth})));
}

/// An encoder, and a decoder that attends to the encoder's output.
struct NetImpl : nn::Module {
  explicit NetImpl(std::int64_t length) : time(length) {
    register_module("first", first);
    register_module("encoder", encoder);
    register_module("decoder", decoder);
    const torch::NoGradGuard no_grad;
    int number = 0;
    for (const Tensor& parameter : parameters())
      parameter.copy_(waves(37 * number++, parameter.sizes().vec()) * 0.4);
  }
  // batch x time x width
  Tensor forward(const Tensor& x) {
    const Tensor memory = encoder(first(x).transpose(0, 1), causal(time));
    return decoder(memory.sin(), memory, causal(time)).transpose(0, 1);
  }
  std::int64_t time;
  nn::Linear first{kWidth, kWidth};
  nn::TransformerEncoder encoder{
      nn::TransformerEncoderOptions(
          nn::TransformerEncoderLayer(
              nn::TransformerEncoderLayerOptions(kWidth, kHeads)
                  .dim_feedforward(12)
                  .dropout(0)),
          kLayers)
          .norm(norm())};
  nn::TransformerDecoder decoder{
      nn::TransformerDecoderOptions(
          nn::TransformerDecoderLayer(
              nn::TransformerDecoderLayerOptions(kWidth, kHeads)
                  .dim_feedforward(12)
                  .dropout(0)),
          2)
          .norm(norm())};
};
TORCH_MODULE(Net);

// Net's computation, layer by layer; the decoder layers pass the memory on.
PipelineLayers layers_of(const Net& net) {
  const std::int64_t time = net->time;
  using Two = std::tuple<Tensor, Tensor>;
  PipelineLayers layers;
  layers.add("first", net->first, [](nn::LinearImpl& first, Tensor x) {
    return first.forward(x).transpose(0, 1);
  });
  for (int i = 0; i < kLayers; ++i) {
    layers.add(
        "encoder.layers." + std::to_string(i),
        net->encoder->layers->ptr<nn::TransformerEncoderLayerImpl>(
            static_cast<std::size_t>(i)),
        [time](nn::TransformerEncoderLayerImpl& layer, Tensor x) {
          return layer.forward(x, causal(time));
        });
  }
  layers.add(
      "encoder.norm",
      net->encoder->named_children()["norm"],
      [](nn::Module& norm, Tensor x) {
        const Tensor memory = norm.as<nn::LayerNormImpl>()->forward(x);
        return Two(memory.sin(), memory);
      });
  for (int i = 0; i < 2; ++i) {
    layers.add(
        "decoder.layers." + std::to_string(i),
        net->decoder->layers->ptr<nn::TransformerDecoderLayerImpl>(
            static_cast<std::size_t>(i)),
        [time](
            nn::TransformerDecoderLayerImpl& layer, Tensor x, Tensor memory) {
          return Two(layer.forward(x, memory, causal(time)), memory);
        });
  }
  layers.add(
      "decoder.norm",
      net->decoder->named_children()["norm"],
      [](nn::Module& norm, Tensor x, Tensor) {
        return norm.as<nn::LayerNormImpl>()->forward(x).transpose(0, 1);
      });
  return layers;
}

struct Case {
  std::int64_t time = 6;
  std::vector<std::string> split_points = {};
  std::string schedule = "1F1B";
  int num_chunks = 1;
  bool recomputes = false;
  /// Divides layers by Megatron-LM's options instead of a plan.
  bool is_megatron = false;
};

Tensor inputs_of(int step, std::int64_t time) {
  return waves(step, {kRows, time, kWidth});
}

Tensor loss_of(const Tensor& output, const Tensor& labels) {
  return (output - labels).pow(2).mean();
}

torch::optim::SGDOptions sgd_options() {
  return torch::optim::SGDOptions(0.1).momentum(0.9);
}

struct Trained {
  Weights weights;
  std::vector<double> losses;
};

Trained train_alone(std::int64_t time) {
  Trained trained;
  Net net(time);
  torch::optim::SGD sgd(net->parameters(), sgd_options());
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    const Tensor x = inputs_of(step, time);
    const Tensor loss = loss_of(net(x), x.cos());
    loss.backward();
    sgd.step();
    trained.losses.push_back(loss.item<double>());
  }
  for (const auto& item : net->named_parameters())
    trained.weights[item.key()] = item.value().detach().clone();
  return trained;
}

AcceleratorOptions options_of(const Case& each, const WorldOptions& world) {
  AcceleratorOptions options;
  options.world = world;
  if (each.is_megatron) {
    options.parallel.megatron_lm = MegatronLMOptions{
        .tp_degree = kTensor,
        .pp_degree = 2,
        .gradient_clipping = 0.0,
        .sequence_parallelism = true};
  } else {
    options.parallel.tensor = kTensor;
    options.parallel.pipeline = 2;
    options.parallel.parallelize_plan =
        infer_parallelize_plan(*Net(each.time), kTensor, true).plan;
  }
  if (each.recomputes) {
    options.parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::size_based_wrap,
        .min_num_params = 100};
  }
  return options;
}

void expect_like_one_process(const Case& each) {
  const Trained expected = train_alone(each.time);
  Trained found;
  std::mutex mutex;
  run_on_ranks(2 * kTensor, [&](const WorldOptions& world) {
    const Accelerator accelerator(options_of(each, world));
    const Net net(each.time);
    const Pipeline pipeline(
        accelerator,
        layers_of(net),
        {.split_points = each.split_points,
         .schedule = parse_pipeline_schedule(each.schedule),
         .num_chunks = each.num_chunks,
         .num_micro_batches = 4});
    torch::optim::SGD sgd(pipeline.parameters(), sgd_options());
    auto optimizer = accelerator.prepare(sgd);
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      const Tensor x = inputs_of(step, each.time).to(accelerator.device());
      optimizer.zero_grad();
      losses.push_back(pipeline.step(x, x.cos(), &loss_of).loss.item<double>());
      optimizer.step();
    }
    Weights own;
    {
      const auto scope = pipeline.model().full_parameters();
      for (const auto& item : pipeline.model().named_parameters())
        own[item.key()] = item.value().detach().clone();
    }
    const std::lock_guard lock(mutex);
    found.losses = losses;
    for (const auto& [name, weight] : own) {
      const auto [known, is_new] = found.weights.emplace(name, weight);
      EXPECT_TRUE(known->second.allclose(weight, 0, 0))
          << name << " differs between ranks";
    }
  });
  for (std::size_t i = 0; i < expected.losses.size(); ++i)
    EXPECT_NEAR(found.losses[i], expected.losses[i], 2e-5);
  EXPECT_EQ(found.weights.size(), expected.weights.size());
  for (const auto& [name, weight] : expected.weights) {
    ASSERT_TRUE(found.weights.contains(name)) << name;
    EXPECT_TRUE(found.weights.at(name).allclose(weight, 2e-5, 2e-5))
        << name << " differs by "
        << (found.weights.at(name) - weight).abs().max().item<double>();
  }
}

TEST(PipelineSequences, AreCutInsideStacks) {
  for (const char* const split :
       {"encoder.layers.1",
        "encoder.layers.2",
        "encoder.norm",
        "decoder.layers.1",
        "decoder.norm"}) {
    SCOPED_TRACE(split);
    expect_like_one_process({.split_points = {split}});
  }
}

// The ranks' slices have different sizes.
TEST(PipelineSequences, MayNotDivideEvenly) {
  expect_like_one_process({.time = 5, .split_points = {"encoder.layers.2"}});
  expect_like_one_process({.time = 7, .split_points = {"decoder.layers.1"}});
}

TEST(PipelineSequences, GoWithOtherSchedules) {
  const std::vector<std::string> four{
      "encoder.layers.1", "encoder.layers.3", "decoder.layers.1"};
  expect_like_one_process(
      {.split_points = four, .schedule = "Interleaved1F1B", .num_chunks = 2});
  expect_like_one_process(
      {.split_points = four,
       .schedule = "InterleavedZeroBubble",
       .num_chunks = 2});
  expect_like_one_process(
      {.split_points = {"encoder.layers.2"}, .schedule = "GPipe"});
}

TEST(PipelineSequences, AreRecomputed) {
  expect_like_one_process(
      {.split_points = {"encoder.layers.2"}, .recomputes = true});
  expect_like_one_process(
      {.time = 5, .split_points = {"decoder.layers.1"}, .recomputes = true});
}

TEST(PipelineSequences, AreDividedIfMegatronSaysSo) {
  expect_like_one_process(
      {.split_points = {"encoder.layers.2"}, .is_megatron = true});
}

}  // namespace pipeline_sequences_test
}  // namespace accelerate
