// torch::nn::MultiheadAttention on sequences divided across ranks, by a ring or
// by exchanging heads: what it returns, keeps and sends.
#include <accelerate/accelerate.h>

#include <algorithm>
#include <map>

#include "split_problem.h"
#include "support/expect_error.h"
#include "support/run_counted.h"

namespace accelerate {
namespace attention_exchange_test {

using namespace split_problem;
using testing::expect_error;

constexpr std::int64_t kWidth = 8, kHeads = 4, kBatch = 2;
using Impl = nn::TransformerImpl;

struct Case {
  std::int64_t length = 8;
  int context = 2;
  int tensor = 1;
  SequenceCut cut = SequenceCut::zigzag;
  bool exchanges_heads = false;
  KeyValueRotation rotation = KeyValueRotation::alltoall;
  bool is_causal = true;
  bool has_padding = false;
  bool has_documents = false;
  bool recomputes = false;
  Precision precision = Precision::no;
  double tolerance = 2e-5;
};

/// Unmodified layers of LibTorch: an encoder, and a decoder that attends to it.
struct Net : nn::Module {
  Net() {
    register_module("encoder", encoder);
    register_module("decoder", decoder);
    fill(*this);
  }
  Tensor forward(
      const Tensor& x,
      const Tensor& mask,
      const Tensor& memory_mask,
      const Tensor& padding) {
    const Tensor encoded = encoder(x, mask, padding);
    return decoder(encoded.sin(), encoded, mask, memory_mask, padding, padding);
  }
  nn::TransformerEncoder encoder{
      nn::TransformerEncoderLayer(
          nn::TransformerEncoderLayerOptions(kWidth, kHeads)
              .dim_feedforward(8)
              .dropout(0)),
      2};
  nn::TransformerDecoder decoder{
      nn::TransformerDecoderLayer(
          nn::TransformerDecoderLayerOptions(kWidth, kHeads)
              .dim_feedforward(8)
              .dropout(0)),
      2};
};

Tensor documents_of(std::int64_t length) {
  return torch::arange(length).mul(3).div(length, "floor");
}

// Returns a float mask to add to the scores.
Tensor hidden_unless(const Tensor& allowed) {
  return torch::zeros(allowed.sizes())
      .masked_fill(
          allowed.logical_not(), -std::numeric_limits<double>::infinity());
}

// Inputs that all ranks are given and divide, except for `padding`.
struct Given {
  explicit Given(const Case& each, bool in_one_process)
      : x(waves(0, {each.length, kBatch, kWidth})),
        weights(waves(7, {each.length, kBatch, kWidth})) {
    const std::int64_t length = each.length;
    if (each.is_causal) mask = Impl::generate_square_subsequent_mask(length);
    if (each.has_documents && in_one_process) {
      const Tensor ids = documents_of(length);
      const Tensor same = hidden_unless(ids.unsqueeze(0).eq(ids.unsqueeze(1)));
      mask = mask.defined() ? mask + same : same;
      memory_mask = same;
    }
    // Does not pad the first positions, to which causal queries attend.
    if (each.has_padding) {
      padding = torch::arange(length)
                    .expand({kBatch, length})
                    .ge(torch::tensor({length - 2, length}).unsqueeze(1));
    }
  }
  Tensor x, mask, memory_mask, padding, weights;
};

void expect_like_one_process(const Case& each) {
  Weights expected;
  Tensor whole;
  run_on_ranks(1, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = each.precision, .world = world});
    const auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Given given(each, true);
    whole = model(given.x, given.mask, given.memory_mask, given.padding);
    accelerator.backward((whole * given.weights).sum());
    optimizer.step();
    expected = named(accelerator.get_state_dict(model));
  });
  ParallelOptions parallel{.tensor = each.tensor, .context = each.context};
  if (each.tensor > 1) {
    parallel.parallelize_plan =
        infer_parallelize_plan(*std::make_shared<Net>(), each.tensor, true)
            .plan;
  }
  if (each.recomputes) {
    parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
        .transformer_cls_names_to_wrap = {
            "TransformerEncoderLayer", "TransformerDecoderLayer"}};
  }
  run_on_ranks(each.context * each.tensor, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = each.precision,
         .parallel = parallel,
         .world = world});
    const auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Given given(each, false);
    std::vector<Tensor> buffers{given.x, given.weights};
    if (given.mask.defined()) buffers.push_back(given.mask);
    ContextParallelOptions options{
        .cut = each.cut,
        .pad_values = std::vector<double>(buffers.size(), 0),
        .exchange_heads = each.exchanges_heads,
        .rotation = each.rotation};
    if (each.has_documents) options.document_ids = documents_of(each.length);
    {
      const ContextParallelScope sequence = accelerator.maybe_context_parallel(
          buffers, std::vector<std::int64_t>(buffers.size(), 0), {}, options);
      const Tensor output =
          model(given.x, given.mask, given.memory_mask, given.padding);
      const Tensor positions = sequence.positions();
      const Tensor is_real = positions.lt(each.length);
      EXPECT_TRUE(torch::allclose(
          output.index({is_real}),
          whole.index_select(0, positions.index({is_real})),
          each.tolerance,
          each.tolerance));
      accelerator.backward((output * given.weights).sum() * each.context);
    }
    optimizer.step();
    const Weights found =
        named(accelerator.get_state_dict(model, {.rank0_only = false}));
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, weight] : expected) {
      EXPECT_TRUE(torch::allclose(
          found.at(name), weight, each.tolerance, each.tolerance))
          << name << " differs by "
          << (found.at(name) - weight).abs().max().item<double>();
    }
  });
}

TEST(AttentionExchange, EqualsOneProcess) {
  for (const SequenceCut cut : {SequenceCut::contiguous, SequenceCut::zigzag}) {
    for (const bool exchanges_heads : {false, true}) {
      for (const bool is_causal : {false, true}) {
        for (const bool has_padding : {false, true}) {
          SCOPED_TRACE(
              ::testing::Message()
              << exchanges_heads << is_causal << has_padding);
          Case each{
              .cut = cut,
              .exchanges_heads = exchanges_heads,
              .is_causal = is_causal,
              .has_padding = has_padding};
          expect_like_one_process(each);
          each.context = 3;
          each.length = 11;
          each.rotation = KeyValueRotation::allgather;
          expect_like_one_process(each);
        }
      }
    }
  }
}

TEST(AttentionExchange, KeepsPackedDocumentsApart) {
  for (const bool exchanges_heads : {false, true}) {
    for (const bool is_causal : {false, true}) {
      expect_like_one_process(
          {.length = 9,
           .exchanges_heads = exchanges_heads,
           .is_causal = is_causal,
           .has_documents = true});
    }
  }
}

TEST(AttentionExchange, IsRecomputed) {
  for (const bool exchanges_heads : {false, true}) {
    expect_like_one_process(
        {.exchanges_heads = exchanges_heads,
         .has_padding = true,
         .recomputes = true});
  }
}

TEST(AttentionExchange, TrainsInBf16) {
  expect_like_one_process({.precision = Precision::bf16, .tolerance = 6e-2});
}

// Each rank has some of the heads and some of the positions.
TEST(AttentionExchange, GoesWithHeadsThatRanksSplit) {
  for (const bool exchanges_heads : {false, true}) {
    for (const bool recomputes : {false, true}) {
      expect_like_one_process(
          {.tensor = 2,
           .exchanges_heads = exchanges_heads,
           .has_padding = true,
           .recomputes = recomputes});
    }
  }
  expect_like_one_process({.length = 7, .tensor = 3, .is_causal = false});
}

/// One layer whose projections and last layer are the identity, so that its
/// output is the product of the attention weights and the values.
struct Weighing : nn::Module {
  explicit Weighing(double dropout)
      : attention(
            nn::MultiheadAttentionOptions(kWidth, kHeads).dropout(dropout)) {
    register_module("attention", attention);
    const torch::NoGradGuard no_grad;
    attention->in_proj_weight.copy_(torch::eye(kWidth).repeat({3, 1}));
    attention->out_proj->weight.copy_(torch::eye(kWidth));
  }
  std::vector<Tensor> forward(const Tensor& x) {
    const auto [output, mean] = attention(x, x, x);
    return {output, mean};
  }
  // Returns the output and each head's weights.
  std::vector<Tensor> of_heads(const Tensor& x) {
    const auto [output, each] = attention(
        x, x, x, Tensor(), true, Tensor(), /*average_attn_weights=*/false);
    return {output, each};
  }
  nn::MultiheadAttention attention;
};

TEST(AttentionExchange, ReturnsTheWeightsOfItsQueries) {
  constexpr std::int64_t kLength = 8;
  const Tensor x = waves(1, {kLength, kBatch, kWidth});
  const auto loss_of = [](const std::vector<Tensor>& results,
                          const Tensor& rows) {
    return results[0].sin().sum() +
        (results[1].exp() * rows.transpose(0, 1).narrow(-1, 0, 1)).sum();
  };
  const auto alone = std::make_shared<Weighing>(0);
  const std::vector<Tensor> expected = alone->forward(x);
  loss_of(expected, x).backward();
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const auto net = std::make_shared<Weighing>(0);
    const auto model = accelerator.prepare(net);
    const Tensor own = x.clone();
    const ContextParallelScope sequence =
        accelerator.maybe_context_parallel({own}, {0});
    const std::vector<Tensor> found = model(own);
    EXPECT_TRUE(torch::allclose(
        found[1],
        expected[1].index_select(1, sequence.positions()),
        1e-5,
        1e-6));
    accelerator.backward(loss_of(found, own) * 2);
    EXPECT_TRUE(torch::allclose(
        net->attention->in_proj_weight.grad(),
        alone->attention->in_proj_weight.grad(),
        1e-4,
        1e-5));
  });
}

// The returned weights show which were dropped: different ones on each rank and
// in each call.
TEST(AttentionExchange, DropsTheWeightsThatItReturns) {
  constexpr std::int64_t kLength = 32;
  const Tensor x = waves(1, {kLength, kBatch, kWidth});
  for (const bool exchanges_heads : {false, true}) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel = {.context = 2}, .world = world});
      const auto net = std::make_shared<Weighing>(0.5);
      const auto model = accelerator.prepare(net);
      const Tensor own = x.clone();
      const ContextParallelScope sequence = accelerator.maybe_context_parallel(
          {own}, {0}, {}, {.exchange_heads = exchanges_heads});
      std::vector<Tensor> dropped;
      for (int call = 0; call < 2; ++call) {
        const std::vector<Tensor> results = net->of_heads(own);
        const Tensor each = results[1].clone();
        const Tensor values =
            x.unflatten(-1, {kHeads, -1}).permute({1, 2, 0, 3});
        const Tensor product =
            each.matmul(values).permute({2, 0, 1, 3}).flatten(-2);
        EXPECT_TRUE(torch::allclose(results[0], product, 1e-4, 1e-5));
        dropped.push_back(each.eq(0).to(torch::kFloat));
        EXPECT_NEAR(dropped.back().mean().item<double>(), 0.5, 0.05);
      }
      EXPECT_FALSE(torch::equal(dropped[0], dropped[1]));
      const std::vector<Tensor> all =
          accelerator.world().group().all_gather(dropped[0]);
      EXPECT_FALSE(torch::equal(all[0], all[1]));
    });
  }
}

// A ring sends keys and values twice and their gradients once, and with a
// causal mask only those that are read.
TEST(AttentionExchange, SendsWhatARingSends) {
  constexpr std::int64_t kLength = 64;
  constexpr int kRanks = 4;
  const auto bytes_of = [&](const Tensor& mask) {
    double bytes = 0;
    std::mutex mutex;
    testing::run_counted(
        kRanks,
        [&](const WorldOptions& world, detail::TrafficCounter& counter) {
          const Accelerator accelerator(
              {.parallel = {.context = kRanks}, .world = world});
          nn::MultiheadAttention attention(kWidth, kHeads);
          attention->eval();
          const auto model = accelerator.prepare(attention.ptr());
          Tensor x = waves(0, {kLength, kBatch, kWidth});
          Tensor rows = mask.clone();
          const ContextParallelScope sequence =
              accelerator.maybe_context_parallel(
                  {x, rows},
                  {0, 0},
                  {},
                  {.rotation = KeyValueRotation::alltoall});
          x.requires_grad_();
          counter.reset();
          const Tensor output =
              std::get<0>(attention->forward(x, x, x, Tensor(), true, rows));
          torch::autograd::grad({output.sum()}, {x});
          const std::lock_guard lock(mutex);
          bytes += counter.total().bytes / kRanks;
        });
    return bytes;
  };
  const double block = 4.0 * kLength / kRanks * kBatch * kWidth;
  const double everything = 6 * block * (kRanks - 1);
  const Tensor none = torch::zeros({kLength, kLength});
  EXPECT_NEAR(bytes_of(none), everything, 0.02 * everything);
  const double causal =
      bytes_of(Impl::generate_square_subsequent_mask(kLength));
  EXPECT_LT(causal, 0.8 * everything);
}

TEST(AttentionExchange, RefusesMasksThatDoNotFit) {
  expect_error<ConfigError>(
      [] {
        run_on_ranks(2, [](const WorldOptions& world) {
          const Accelerator accelerator(
              {.parallel = {.context = 2}, .world = world});
          nn::MultiheadAttention attention(kWidth, kHeads);
          const auto model = accelerator.prepare(attention.ptr());
          const Tensor x = waves(0, {8, kBatch, kWidth});
          const ContextParallelScope sequence =
              accelerator.maybe_context_parallel({x}, {0});
          (void)attention->forward(
              x, x, x, Tensor(), true, torch::zeros({8, 8}));
        });
      },
      "needs a row for each of 4 queries of this rank and a column for each of "
      "8 keys");
}

}  // namespace attention_exchange_test
}  // namespace accelerate
