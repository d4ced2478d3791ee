// Convolutions whose channels are split over tensor-parallel ranks.
#include <accelerate/accelerate.h>

#include "split_problem.h"

namespace accelerate {
namespace split_convolution_test {

using namespace split_problem;

/// A chain of convolutions; 7 channels divide neither among 2 nor 3 ranks.
template <class Conv, class Options, int kDims, bool kHasBias = true>
struct Net : nn::Module {
  static constexpr int kSampleDim = 0;
  Net() {
    layers->push_back(layer(4, 7));
    layers->push_back(layer(7, 5));
    layers->push_back(layer(5, 6));
    layers->push_back(layer(6, 3));
    register_module("layers", layers);
    register_module("head", head);
    fill(*this);
  }
  Tensor forward(Tensor x) {
    for (const auto& each : *layers)
      x = torch::tanh(each->as<Conv>()->forward(x));
    return head(x.flatten(2).mean(-1));
  }
  static Tensor inputs(int step, std::int64_t samples) {
    std::vector<std::int64_t> shape{samples, 4};
    shape.resize(2 + kDims, 4);
    return waves(step, shape);
  }
  static Conv layer(std::int64_t in, std::int64_t out) {
    return Conv(Options(in, out, 3).stride(1).padding(1).bias(kHasBias));
  }
  nn::ModuleList layers;
  nn::Linear head{3, 2};
};

using Net1d = Net<nn::Conv1d, nn::Conv1dOptions, 1>;
using Net2d = Net<nn::Conv2d, nn::Conv2dOptions, 2>;
using Net3d = Net<nn::Conv3d, nn::Conv3dOptions, 3>;
using NetWithoutBias = Net<nn::Conv2d, nn::Conv2dOptions, 2, false>;

ParallelizePlan pairs() {
  return {
      {"layers.0", ColwiseParallel{}},
      {"layers.1", RowwiseParallel{}},
      {"layers.2", ColwiseParallel{.output_layouts = Replicate{}}},
      {"layers.3", RowwiseParallel{.input_layouts = Replicate{}}}};
}

TEST(SplitConvolution, TrainsAsOneProcessDoes) {
  expect_parity<Net1d>(pairs());
  expect_parity<Net2d>(pairs());
  expect_parity<Net3d>(pairs());
  expect_parity<NetWithoutBias>(pairs());
}

// Shard{1} and Shard{-1} both mean channels.
TEST(SplitConvolution, HandsOnSlicesOfChannels) {
  const ParallelizePlan plan{
      {"layers.0",
       RowwiseParallel{
           .input_layouts = Replicate{}, .output_layouts = Shard{1}}},
      {"layers.1", ColwiseParallel{.input_layouts = Shard{1}}},
      {"layers.2", RowwiseParallel{.output_layouts = Shard{-1}}},
      {"layers.3",
       ColwiseParallel{
           .input_layouts = Shard{-1}, .output_layouts = Replicate{}}}};
  expect_parity<Net2d>(plan);
  expect_parity<NetWithoutBias>(plan);
}

TEST(SplitConvolution, KeepsSlicesOfChannels) {
  run_on_ranks(3, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.tensor = 3, .parallelize_plan = pairs()},
         .world = world});
    const Weights full = named(get_state_dict(*std::make_shared<Net2d>()));
    const auto net = std::make_shared<Net2d>();
    const auto model = accelerator.prepare(net);
    const std::int64_t rank = accelerator.process_index();
    const std::int64_t begin = 7 * rank / 3;
    const std::int64_t count = 7 * (rank + 1) / 3 - begin;
    for (const WeightShard& shard : model.state_dict_shards()) {
      Tensor expected = full.at(shard.name);
      if (shard.name.starts_with("layers.0."))
        expected = expected.narrow(0, begin, count);
      if (shard.name == "layers.1.weight")
        expected = expected.narrow(1, begin, count);
      if (shard.name.starts_with("layers.2.weight"))
        expected = expected.narrow(0, 2 * rank, 2);
      if (shard.name == "layers.3.weight")
        expected = expected.narrow(1, 2 * rank, 2);
      EXPECT_TRUE(torch::equal(shard.tensor, expected)) << shard.name;
    }
  });
}

/// One convolution of a sample without a batch, padded by hand.
struct Unbatched : nn::Module {
  static constexpr int kSampleDim = 0;
  Unbatched() {
    register_module("conv", conv);
    fill(*this);
  }
  Tensor forward(const Tensor& x) { return conv(x); }
  static Tensor inputs(int step, std::int64_t) {
    return waves(step, {4, 5, 5});
  }
  nn::Conv2d conv{
      nn::Conv2dOptions(4, 3, 3).padding(1).padding_mode(torch::kCircular)};
};

TEST(SplitConvolution, TakesOneSample) {
  const Tensor x = Unbatched::inputs(0, 1);
  const Tensor expected = std::make_shared<Unbatched>()->forward(x);
  const std::vector<ParallelStyle> styles{
      ColwiseParallel{.output_layouts = Replicate{}},
      RowwiseParallel{.input_layouts = Replicate{}}};
  for (const ParallelStyle& style : styles) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel =
               {.tensor = 2,
                .parallelize_plan = ParallelizePlan{{"conv", style}}},
           .world = world});
      const auto model = accelerator.prepare(std::make_shared<Unbatched>());
      EXPECT_TRUE(torch::allclose(model(x), expected, 1e-5, 1e-6));
    });
  }
}

struct Unusual : nn::Module {
  static constexpr int kSampleDim = 0;
  Unusual() {
    register_module("grouped", grouped);
    register_module("transposed", transposed);
  }
  Tensor forward(const Tensor& x) { return transposed(grouped(x)); }
  static Tensor inputs(int step, std::int64_t samples) {
    return waves(step, {samples, 4, 5, 5});
  }
  nn::Conv2d grouped{nn::Conv2dOptions(4, 4, 3).groups(2)};
  nn::ConvTranspose2d transposed{nn::ConvTranspose2dOptions(4, 4, 3)};
};

TEST(SplitConvolution, RefusesWhatItCannotSplit) {
  expect_refused<Unusual>(
      {{"grouped", ColwiseParallel{}}},
      "\"grouped\" is a convolution with groups, whose channels tensor "
      "parallelism does not split");
  expect_refused<Unusual>(
      {{"transposed", RowwiseParallel{}}},
      "\"transposed\" has a weight of shape [4, 4, 3, 3]; only linear layers, "
      "embeddings and convolutions (not transposed ones) are split");
  expect_refused<Net2d>(
      {{"layers.0", ColwiseParallel{.output_layouts = Shard{2}}}},
      "\"layers.0\" is a convolution, of which only channels are split");
  expect_refused<Net2d>(
      {{"layers.0", ColwiseParallel{.input_layouts = Shard{0}}}},
      "of which only channels are split");
  expect_refused<Net2d>(
      {{"layers.0", ColwiseParallel{.num_heads = 2}}},
      "is a convolution; leave out num_heads and projections");
  expect_refused<Net2d>(
      {{"layers.3", ColwiseParallel{}}},
      "has a weight of shape [3, 6, 3, 3], which cannot be split along "
      "dimension 0 over 4 ranks",
      4);
}

TEST(SplitConvolution, NamesTheChannelsThatDoNotFit) {
  expect_refused<Net2d>(
      {{"layers.0", ColwiseParallel{}}, {"layers.1", ColwiseParallel{}}},
      "layer \"layers.1\", whose weight [5, 7, 3, 3] is split along dimension "
      "0 over 2 ranks, was given an input of shape [4, 3, 4, 4], but its "
      "number of channels should be 7");
}

}  // namespace split_convolution_test
}  // namespace accelerate
