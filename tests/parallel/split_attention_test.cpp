// torch::nn::MultiheadAttention in which each rank computes its own heads,
// whatever the queries, masks and projections, and what it returns.
#include <accelerate/accelerate.h>

#include "split_problem.h"
#include "support/run_counted.h"

namespace accelerate {
namespace split_attention_test {

using namespace split_problem;

constexpr std::int64_t kWidth = 12, kTime = 5;

// Heads that divide among 2 ranks but not 3 (4 heads), or the other way round.
nn::MultiheadAttentionOptions heads(std::int64_t num_heads) {
  return {kWidth, num_heads};
}

Tensor output_of(const std::tuple<Tensor, Tensor>& attention) {
  return std::get<0>(attention);
}

/// All ways to call the module and to pass masks.
struct Net : nn::Module {
  static constexpr int kSampleDim = 1;
  Net() {
    register_module("self_attn", self_attn);
    register_module("biased", biased);
    register_module("cross", cross);
    register_module("mixed", mixed);
    register_module("separate", separate);
    register_parameter("relative", relative);
    fill(*this);
  }
  Tensor forward(const Tensor& x) {
    const std::int64_t batch = x.size(1);
    const Tensor causal =
        nn::TransformerImpl::generate_square_subsequent_mask(kTime).to(
            x.device());
    const Tensor padding =
        torch::arange(kTime, x.device()).expand({batch, kTime}).ge(kTime - 1);
    Tensor y = x + output_of(self_attn(x, x, x, padding, false, causal));
    // The heads of all ranks contribute to this parameter's gradient.
    y = y + output_of(biased(y, y, y, padding, true, relative.tanh()));
    y = y + output_of(cross(y, x, x, padding));
    y = y + output_of(mixed(y, x, torch::tanh(x)));
    const Tensor narrow = x.narrow(-1, 0, 4);
    return y + output_of(separate(y, narrow, narrow.sin()));
  }
  static Tensor inputs(int step, std::int64_t samples) {
    return waves(step, {kTime, samples, kWidth});
  }
  static ParallelizePlan plan() {
    return {
        {"*.out_proj", RowwiseParallel{}},
        {"self_attn", ColwiseParallel{}},
        {"biased", ColwiseParallel{}},
        {"cross", ColwiseParallel{}},
        {"mixed", ColwiseParallel{}},
        {"separate", ColwiseParallel{}}};
  }
  nn::MultiheadAttention self_attn{heads(4)},
      biased{heads(3).add_bias_kv(true).add_zero_attn(true)}, cross{heads(3)},
      mixed{heads(6).bias(false)}, separate{heads(4).kdim(4).vdim(4)};
  Tensor relative = torch::zeros({kTime, kTime});
};

// Not in bf16, where the module does not take a key_padding_mask.
TEST(SplitAttention, ComputesTheHeadsOfOneProcess) {
  const auto expect = [](ParallelOptions parallel) {
    parallel.parallelize_plan = Net::plan();
    expect_like_one_process<Net>({.parallel = parallel});
  };
  expect({.tensor = 2});
  expect({.tensor = 3});
  expect({.replicate = 2, .tensor = 2});
  expect({.shard = 2, .tensor = 3});
  expect(
      {.tensor = 3,
       .activation_checkpointing = ActivationCheckpointingOptions{
           .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
           .transformer_cls_names_to_wrap = {"MultiheadAttention"}}});
}

TEST(SplitAttention, IsThatOfOneProcessInFullParameters) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel = {.tensor = 2, .parallelize_plan = Net::plan()},
         .world = world});
    const auto net = std::make_shared<Net>();
    const auto model = accelerator.prepare(net);
    const Tensor x = Net::inputs(0, 4);
    const torch::NoGradGuard no_grad;
    const Tensor expected = std::make_shared<Net>()->forward(x);
    {
      const auto full = model.full_parameters();
      EXPECT_TRUE(torch::equal(net->forward(x), expected));
    }
    EXPECT_TRUE(torch::allclose(model(x), expected, 1e-5, 1e-6));
  });
}

// Only some layers are split; output projections are full, or slice their
// input.
TEST(SplitAttention, GoesWithOtherStyles) {
  const auto expect = [](const ParallelizePlan& plan) {
    expect_like_one_process<Net>(
        {.parallel = {.tensor = 2, .parallelize_plan = plan}});
  };
  expect({{"cross", ColwiseParallel{}}, {"separate", ColwiseParallel{}}});
  expect(
      {{"self_attn", ColwiseParallel{}},
       {"cross", ColwiseParallel{}},
       {"self_attn.out_proj", RowwiseParallel{.input_layouts = Replicate{}}},
       {"cross.out_proj", ColwiseParallel{.output_layouts = Replicate{}}}});
  expect(
      {{"cross", ColwiseParallel{.output_layouts = Replicate{}}},
       {"mixed", ColwiseParallel{}},
       {"*.out_proj", RowwiseParallel{.input_layouts = Replicate{}}}});
}

TEST(SplitAttention, TrainsUnderAnInferredPlan) {
  for (const int ranks : {2, 3}) {
    expect_like_one_process<Net>(
        {.parallel = {
             .tensor = ranks,
             .parallelize_plan =
                 infer_parallelize_plan(*std::make_shared<Net>(), ranks)
                     .plan}});
  }
}

/// Returns the attention weights of its heads, or their mean.
struct Weighing : nn::Module {
  static constexpr int kSampleDim = 1;
  Weighing() {
    register_module("attention", attention);
    fill(*this);
  }
  Tensor forward(const Tensor& x) {
    const auto [mixed, mean] = attention(x, x, x);
    const auto [again, each] = attention(
        x,
        torch::tanh(x),
        x,
        Tensor(),
        /*need_weights=*/true,
        Tensor(),
        /*average_attn_weights=*/false);
    return torch::cat(
        {mixed + again,
         mean.transpose(0, 1).exp(),
         each.mul(waves(2, {1, 4, 1, 1})).sum(1).transpose(0, 1)},
        -1);
  }
  static Tensor inputs(int step, std::int64_t samples) {
    return waves(step, {kTime, samples, kWidth});
  }
  nn::MultiheadAttention attention{heads(4)};
};

TEST(SplitAttention, ReturnsTheWeightsOfAllHeads) {
  const ParallelizePlan plan{
      {"attention", ColwiseParallel{}},
      {"attention.out_proj", RowwiseParallel{}}};
  for (const int tensor : {2, 3}) {
    Case each{.parallel = {.tensor = tensor, .parallelize_plan = plan}};
    expect_like_one_process<Weighing>(each);
    each.parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
        .transformer_cls_names_to_wrap = {"MultiheadAttention"}};
    expect_like_one_process<Weighing>(each);
    each.parallel.activation_checkpointing.reset();
    each.precision = Precision::bf16;
    each.tolerance = 3e-2;
    // The fifth gradient is a fiftieth of the others, less than what bf16
    // rounds away from them.
    each.steps = 4;
    expect_like_one_process<Weighing>(each);
  }
}

TEST(SplitAttention, ReadsWeightsByOperatorsOnly) {
  run_on_ranks(2, [](const WorldOptions& world) {
    const Accelerator accelerator(
        {.parallel =
             {.tensor = 2,
              .parallelize_plan =
                  ParallelizePlan{
                      {"attention", ColwiseParallel{}},
                      {"attention.out_proj", RowwiseParallel{}}}},
         .world = world});
    const auto net = std::make_shared<Weighing>();
    const auto alone = std::make_shared<Weighing>();
    const auto model = accelerator.prepare(net);
    const Tensor x = Weighing::inputs(0, 4);
    const torch::NoGradGuard no_grad;
    const Tensor expected = std::get<1>(alone->attention(x, x, x));
    const Tensor found = std::get<1>(net->attention(x, x, x));
    EXPECT_EQ(found.sizes(), expected.sizes());
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    try {
      (void)found.const_data_ptr<float>();
      ADD_FAILURE() << "read weights that had no memory";
    } catch (const std::exception& error) {
      EXPECT_NE(
          std::string(error.what())
              .find("attention weights of \"attention\" are computed once an "
                    "operator reads them"),
          std::string::npos)
          << error.what();
    }
    EXPECT_TRUE(torch::allclose(found, expected, 1e-5, 1e-6));
    EXPECT_TRUE(torch::allclose(
        torch::stack({found, found}).sum(0), expected * 2, 1e-5, 1e-6));
  });
}

/// Layers of a Transformer, the last of which has fewer heads than ranks.
nn::TransformerEncoder encoder(std::int64_t num_heads, double dropout) {
  return nn::TransformerEncoder(
      nn::TransformerEncoderLayer(
          nn::TransformerEncoderLayerOptions(kWidth, num_heads)
              .dim_feedforward(8)
              .dropout(dropout)),
      2);
}

// A layer has the collectives of two pairs of layers: one reduction per pair
// and direction. Gathering projections would add more.
TEST(SplitAttention, SendsWhatTwoPairsOfLayersSend) {
  constexpr int kRanks = 2;
  constexpr std::int64_t kBatch = 3;
  testing::run_counted(
      kRanks, [&](const WorldOptions& world, detail::TrafficCounter& counter) {
        const auto net = encoder(4, 0);
        const Accelerator accelerator(
            {.parallel =
                 {.tensor = kRanks,
                  .parallelize_plan =
                      infer_parallelize_plan(*net, kRanks).plan},
             .world = world});
        const auto model = accelerator.prepare(net);
        const Tensor x = waves(0, {kTime, kBatch, kWidth})
                             .to(accelerator.device())
                             .requires_grad_();
        counter.reset();
        accelerator.backward(model(x).pow(4).mean());
        const double activations = 4.0 * kTime * kBatch * kWidth;
        const double theory = 2 * 4 * 2 * activations * (kRanks - 1) / kRanks;
        EXPECT_LE(counter.total().bytes, 1.1 * theory);
      });
}

TEST(SplitAttention, RefusesStylesThatDoNotFit) {
  const auto refuse =
      [](const ParallelizePlan& plan, const std::string& why, int ranks = 2) {
        expect_refused<Net>(plan, why, ranks);
      };
  refuse(
      {{"cross", ColwiseParallel{.output_layouts = Shard{1}}}},
      "\"cross\" is a MultiheadAttention, which is split by heads; give "
      "output_layouts Shard{-1}");
  refuse(
      {{"cross", ColwiseParallel{.num_heads = 3}}},
      "\"cross\" is a MultiheadAttention, which knows its heads");
  refuse(
      {{"cross", ColwiseParallel{}}},
      "\"cross\" has 3 heads, which cannot be divided over 4 ranks",
      4);
  refuse(
      {{"separate", ColwiseParallel{.output_layouts = Replicate{}}}},
      "\"separate\" is a MultiheadAttention with keys or values of another "
      "width than its queries");
  refuse(
      {{"separate", ColwiseParallel{.input_layouts = Shard{0}}}},
      "\"separate\" is a MultiheadAttention with keys or values of another "
      "width");
}

}  // namespace split_attention_test
}  // namespace accelerate
