// Modules whose input or output changes its layout under a tensor-parallel
// plan: they train as in one process, and say which plans do not fit.
#include <accelerate/accelerate.h>

#include <limits>

#include "split_problem.h"

namespace accelerate {
namespace prepared_modules_test {

using namespace split_problem;

const TensorPlacement kSequence = Shard{1};

/// Norms and linear layers that are not split, around a feed-forward; 5
/// positions divide neither among 2 nor among 3 ranks.
struct Net : nn::Module {
  static constexpr int kSampleDim = 0;
  Net() {
    register_module("tokens", tokens);
    register_module("norm1", norm1);
    register_module("mlp", mlp);
    register_module("norm2", norm2);
    register_module("head", head);
    fill(*this);
  }
  Tensor forward(const Tensor& words) {
    Tensor x = norm1(tokens(words));
    x = norm2(x + mlp->forward(x));
    return head(x);
  }
  static Tensor inputs(int step, std::int64_t samples) {
    return (torch::arange(samples * 5) * 7 + step)
        .remainder(11)
        .view({samples, 5});
  }
  nn::Embedding tokens{11, 6};
  nn::LayerNorm norm1{nn::LayerNormOptions({6})};
  nn::Sequential mlp{nn::Linear(6, 9), nn::GELU(), nn::Linear(9, 6)};
  nn::LayerNorm norm2{nn::LayerNormOptions({6})};
  nn::Linear head{6, 4};
};

TEST(PreparedModules, WorkOnSlicesFromOneNormToAnother) {
  expect_parity<Net>(
      {{"norm1",
        PrepareModuleInput{
            .input_layouts = Replicate{}, .desired_input_layouts = kSequence}},
       {"mlp.0", ColwiseParallel{.input_layouts = kSequence}},
       {"mlp.2", RowwiseParallel{.output_layouts = kSequence}},
       {"norm2",
        PrepareModuleOutput{
            .output_layouts = kSequence,
            .desired_output_layouts = Replicate{}}}});
}

// The layers of a Sequential take over the layouts that it is prepared for.
TEST(PreparedModules, MayBeSequentials) {
  expect_parity<Net>(
      {{"norm1", PrepareModuleInput{Replicate{}, kSequence}},
       {"mlp",
        PrepareModuleInputOutput{
            .input_layouts = kSequence,
            .desired_input_layouts = Replicate{},
            .output_layouts = Replicate{},
            .desired_output_layouts = kSequence}},
       {"mlp.0", ColwiseParallel{}},
       {"mlp.2", RowwiseParallel{}},
       {"norm2", PrepareModuleOutput{kSequence, Replicate{}}}});
  // The layers of the Sequential are not split.
  expect_parity<Net>(
      {{"tokens", PrepareModuleOutput{Replicate{}, kSequence}},
       {"norm1", SequenceParallel{}},
       {"mlp",
        PrepareModuleInputOutput{
            kSequence, Replicate{}, Replicate{}, kSequence}},
       {"norm2", PrepareModuleOutput{kSequence, Replicate{}}}});
}

TEST(PreparedModules, MayBeLinearLayersAndEmbeddings) {
  // The bias of the head is added after the product is gathered.
  expect_parity<Net>(
      {{"tokens", PrepareModuleInput{Replicate{}, kSequence}},
       {"norm1", SequenceParallel{}},
       {"mlp.0", SequenceParallel{}},
       {"mlp.2", SequenceParallel{}},
       {"norm2", SequenceParallel{}},
       {"head", PrepareModuleOutput{kSequence, Replicate{}}}});
}

TEST(PreparedModules, AddBiasesToSlices) {
  // The bias of mlp.0 is added after the product is sliced, and the bias of
  // mlp.2 after the product is gathered.
  expect_parity<Net>(
      {{"mlp.0", PrepareModuleOutput{Replicate{}, kSequence}},
       {"mlp.2", PrepareModuleOutput{kSequence, Replicate{}}}});
}

TEST(PreparedModules, GoFromOneDimensionToAnother) {
  expect_parity<Net>(
      {{"norm1", PrepareModuleInput{Replicate{}, Shard{0}}},
       {"mlp.0", ColwiseParallel{.input_layouts = Shard{0}}},
       {"mlp.2", RowwiseParallel{.output_layouts = Shard{0}}},
       {"norm2", PrepareModuleOutput{Shard{0}, kSequence}},
       {"head",
        PrepareModuleInputOutput{
            kSequence, Replicate{}, Replicate{}, Replicate{}}}});
}

/// The inputs of linear layers are matrices, so that the product adds the bias;
/// layers have several dimensions, and only the first may be divided.
struct Matrices : nn::Module {
  static constexpr int kSampleDim = 0;
  Matrices() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("last", last);
    fill(*this);
  }
  Tensor forward(const Tensor& x) {
    return last(norm(torch::tanh(first(x)).view({-1, 2, 3})).flatten(1));
  }
  static Tensor inputs(int step, std::int64_t samples) {
    return waves(step, {samples, 5});
  }
  nn::Linear first{5, 6};
  nn::LayerNorm norm{nn::LayerNormOptions({2, 3})};
  nn::Linear last{6, 3};
};

TEST(PreparedModules, MayTakeMatrices) {
  expect_parity<Matrices>(
      {{"first", PrepareModuleInput{Replicate{}, Shard{0}}},
       {"norm", SequenceParallel{}},
       {"last", PrepareModuleOutput{Shard{0}, Replicate{}}}});
}

/// Layers that mix positions get all positions.
struct Mixing : nn::Module {
  static constexpr int kSampleDim = 0;
  Mixing() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("mix", mix);
    register_module("last", last);
    fill(*this);
  }
  Tensor forward(const Tensor& x) {
    return last(mix(norm(torch::tanh(first(x)))));
  }
  static Tensor inputs(int step, std::int64_t samples) {
    return waves(step, {samples, 6, 5});
  }
  nn::Linear first{5, 5};
  nn::GroupNorm norm{nn::GroupNormOptions(2, 6)};
  nn::Conv1d mix{nn::Conv1dOptions(6, 6, 3).padding(1)};
  nn::Linear last{5, 3};
};

TEST(PreparedModules, MayMixWhatTheyGather) {
  expect_parity<Mixing>(
      {{"first", PrepareModuleOutput{Replicate{}, kSequence}},
       {"norm", PrepareModuleInput{kSequence, Replicate{}}},
       {"mix",
        PrepareModuleInputOutput{
            Replicate{}, Replicate{}, Replicate{}, kSequence}},
       {"last", PrepareModuleOutput{kSequence, Replicate{}}}});
}

/// LibTorch's encoder and decoder, with a mask that hides the future; time x
/// batch x width.
struct Translator : nn::Module {
  static constexpr int kSampleDim = 1;
  Translator() {
    register_module("encoder", encoder);
    register_module("decoder", decoder);
    fill(*this);
  }
  Tensor forward(const Tensor& x) {
    const auto future = [](std::int64_t length) {
      return torch::full(
                 {length, length}, -std::numeric_limits<float>::infinity())
          .triu(1);
    };
    const Tensor target = torch::tanh(x.narrow(0, 0, 3));
    return decoder(target, encoder(x, future(5)), future(3));
  }
  static Tensor inputs(int step, std::int64_t samples) {
    return waves(step, {5, samples, 6});
  }
  static ParallelizePlan plan() {
    return infer_parallelize_plan(Translator(), 3, true).plan;
  }
  static nn::AnyModule norm() {
    return nn::AnyModule(nn::LayerNorm(nn::LayerNormOptions({6})));
  }
  nn::TransformerEncoder encoder{
      nn::TransformerEncoderOptions(
          nn::TransformerEncoderLayer(nn::TransformerEncoderLayerOptions(6, 2)
                                          .dim_feedforward(7)
                                          .dropout(0)),
          3)
          .norm(norm())};
  nn::TransformerDecoder decoder{
      nn::TransformerDecoderOptions(
          nn::TransformerDecoderLayer(nn::TransformerDecoderLayerOptions(6, 2)
                                          .dim_feedforward(7)
                                          .dropout(0)),
          2)
          .norm(norm())};
};

TEST(PreparedModules, MakeLayersOfTransformersWorkOnSlices) {
  expect_parity<Translator>(Translator::plan());
}

TEST(PreparedModules, KeepFullParameters) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel =
             {.tensor = 2,
              .parallelize_plan =
                  ParallelizePlan{
                      {"norm1", PrepareModuleInput{Replicate{}, kSequence}},
                      {"norm2", PrepareModuleOutput{kSequence, Replicate{}}}}},
         .world = world});
    const auto net = std::make_shared<Net>();
    const auto model = accelerator.prepare(net);
    EXPECT_EQ(net->norm1->weight.sizes(), at::IntArrayRef({6}));
    const Tensor words = Net::inputs(0, 4);
    const torch::NoGradGuard no_grad;
    const auto alone = std::make_shared<Net>();
    const auto seen = [&](Net& of) { return of.norm1(of.tokens(words)); };
    // Inside full_parameters(), layers behave as in one process.
    {
      const auto full = model.full_parameters();
      EXPECT_TRUE(torch::equal(seen(*net), seen(*alone)));
    }
    // Outside the model's forward, too.
    EXPECT_TRUE(torch::equal(seen(*net), seen(*alone)));
  });
}

TEST(PreparedModules, RefuseWhatDoesNotFit) {
  const PrepareModuleInput slices{Replicate{}, kSequence};
  expect_refused<Net>(
      {{"norm1", PrepareModuleInput{kSequence, kSequence}}},
      "\"norm1\" is prepared, but its layouts and the desired ones are the "
      "same");
  expect_refused<Net>(
      {{"mlp.1", slices}}, "\"mlp.1\" cannot be prepared: its call cannot");
  expect_refused<Net>(
      {{"mlp",
        PrepareModuleInputOutput{kSequence, Replicate{}, kSequence, kSequence}},
       {"mlp.0", ColwiseParallel{.input_layouts = kSequence}},
       {"mlp.2", RowwiseParallel{}}},
      "\"mlp.0\" is split, and its input_layouts are not those that it is "
      "prepared for");
  expect_refused<Net>(
      {{"norm1",
        PrepareModuleInputOutput{
            Replicate{}, kSequence, Replicate{}, kSequence}}},
      "desired_input_layouts and output_layouts differ in that");
  expect_refused<Mixing>(
      {{"mix", slices}}, "\"mix\" mixes positions, or computes statistics");
  expect_refused<Net>(
      {{"norm1", PrepareModuleInput{Replicate{}, Shard{-1}}}},
      "the input of \"norm1\" has shape [4, 5, 6], which cannot be sliced "
      "along dimension -1: the module mixes the last dimension");
  expect_refused<Net>(
      {{"norm1", PrepareModuleInput{Replicate{}, Shard{3}}}},
      "cannot be sliced along dimension 3");
  expect_refused<Net>(
      {{"tokens", PrepareModuleInput{kSequence, Replicate{}}},
       {"tokens*", RowwiseParallel{}},
       {"nothing", slices}},
      "the pattern \"nothing\" of parallelize_plan matches no module");
}

// The rest of the model gets a slice in place of the full tensor.
TEST(PreparedModules, AreNamedIfTheirSliceDoesNotFit) {
  expect_refused<Net>(
      {{"tokens", PrepareModuleOutput{Replicate{}, kSequence}},
       {"norm1", PrepareModuleOutput{kSequence, Replicate{}}},
       {"norm2", PrepareModuleInput{Replicate{}, kSequence}},
       {"mlp.0", PrepareModuleOutput{Replicate{}, Shard{1}}}},
      "layer \"mlp.0\" returned");
}

}  // namespace prepared_modules_test
}  // namespace accelerate
