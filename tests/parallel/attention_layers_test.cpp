// torch::nn::MultiheadAttention on sequences divided across ranks: it attends
// to keys and values of the whole sequence, whatever the queries, masks and
// projections; also where keys are gathered because the module adds keys of its
// own.
#include <accelerate/accelerate.h>

#include "split_problem.h"
#include "support/expect_error.h"

namespace accelerate {
namespace attention_layers_test {

using namespace split_problem;
using testing::expect_error;

constexpr std::int64_t kWidth = 8, kMemory = 6, kBatch = 2;

/// Attention with all features of the module. Shapes are time x batch x width.
struct Net : nn::Module {
  Net() {
    register_module("self_attn", self_attn);
    register_module("cross", cross);
    register_module("mixed", mixed);
    register_module("separate", separate);
    register_module("last", last);
    fill(*this);
  }
  Tensor forward(const Tensor& x, const Tensor& mask, const Tensor& memory) {
    const auto result = [](const auto& attention) {
      return std::get<0>(attention);
    };
    Tensor y = x + result(self_attn(x, x, x, Tensor(), true, mask));
    y = y + result(cross(y, x, x));
    y = y + result(mixed(y, x, torch::tanh(x)));
    const Tensor narrow = x.narrow(-1, 0, kMemory);
    y = y + result(separate(y, narrow, narrow));
    // Every rank has the full `memory`.
    y = y + result(separate(y, memory, memory));
    return last(y);
  }
  nn::MultiheadAttention self_attn{
      nn::MultiheadAttentionOptions(kWidth, 2).add_bias_kv(true).add_zero_attn(
          true)},
      cross{nn::MultiheadAttentionOptions(kWidth, 2)},
      mixed{nn::MultiheadAttentionOptions(kWidth, 4).bias(false)},
      separate{
          nn::MultiheadAttentionOptions(kWidth, 2).kdim(kMemory).vdim(kMemory)};
  nn::Linear last{kWidth, 4};
};

struct Given {
  explicit Given(std::int64_t length)
      : x(waves(0, {length, kBatch, kWidth})),
        mask(torch::full({length, length}, -1e9).triu(1)),
        memory(waves(3, {5, kBatch, kMemory})),
        weights(waves(7, {length, kBatch, 4})) {}
  // The mask has the columns of the sequence without padding.
  Tensor x, mask, memory, weights;
};

// The model's parameters after one step in one process.
Weights step_alone(std::int64_t length, Tensor& output) {
  const auto net = std::make_shared<Net>();
  const Given given(length);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  output = net->forward(given.x, given.mask, given.memory);
  (output * given.weights).sum().backward();
  sgd.step();
  return named(get_state_dict(*net));
}

struct Case {
  std::int64_t length = 8;
  int context = 2;
  SequenceCut cut = SequenceCut::zigzag;
  int shard = 1;
  int tensor = 1;
  ParallelizePlan plan = {};
  bool recomputes = false;
};

void expect_like_one_process(const Case& each) {
  Tensor whole;
  const Weights expected = step_alone(each.length, whole);
  ParallelOptions parallel{
      .shard = each.shard,
      .tensor = each.tensor,
      .context = each.context,
      .parallelize_plan = each.plan};
  if (each.recomputes) {
    parallel.activation_checkpointing = ActivationCheckpointingOptions{
        .auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap,
        .transformer_cls_names_to_wrap = {"MultiheadAttention"}};
  }
  const int num_ranks = each.shard * each.context * each.tensor;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = parallel, .world = world});
    const auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    const auto [model, optimizer] = accelerator.prepare(net, sgd);
    const Given given(each.length);
    {
      const ContextParallelScope sequence = accelerator.maybe_context_parallel(
          {given.x, given.mask, given.weights},
          {0, 0, 0},
          {},
          {.cut = each.cut, .pad_values = {0, 0, 0}});
      const Tensor output = model(given.x, given.mask, given.memory);
      const Tensor positions = sequence.positions();
      const Tensor is_real = positions.lt(each.length);
      EXPECT_TRUE(torch::allclose(
          output.index({is_real}),
          whole.index_select(0, positions.index({is_real})),
          1e-5,
          1e-5));
      // Gradients are averaged over the ranks along context.
      accelerator.backward((output * given.weights).sum() * each.context);
    }
    optimizer.step();
    const Weights found =
        named(accelerator.get_state_dict(model, {.rank0_only = false}));
    for (const auto& [name, weight] : expected) {
      EXPECT_TRUE(torch::allclose(found.at(name), weight, 2e-5, 2e-5))
          << name << " differs by "
          << (found.at(name) - weight).abs().max().item<double>();
    }
  });
}

TEST(AttentionLayers, AttendToTheWholeSequence) {
  for (const SequenceCut cut : {SequenceCut::contiguous, SequenceCut::zigzag}) {
    expect_like_one_process({.cut = cut});
    expect_like_one_process({.length = 12, .context = 3, .cut = cut});
  }
}

TEST(AttentionLayers, LeaveOutPadding) {
  for (const SequenceCut cut : {SequenceCut::contiguous, SequenceCut::zigzag}) {
    expect_like_one_process({.length = 7, .cut = cut});
    expect_like_one_process({.length = 10, .context = 3, .cut = cut});
  }
}

TEST(AttentionLayers, AreRecomputed) {
  expect_like_one_process({.recomputes = true});
  expect_like_one_process({.length = 7, .recomputes = true});
}

TEST(AttentionLayers, MayBeSharded) { expect_like_one_process({.shard = 2}); }

// Layers that each tensor-parallel rank has in full, and split ones.
TEST(AttentionLayers, GoWithTensorParallelism) {
  expect_like_one_process(
      {.tensor = 2,
       .plan = {{"last", ColwiseParallel{.output_layouts = Replicate{}}}}});
  // The module compares the weights of separate projections with its input.
  const ParallelizePlan split{
      {"self_attn", ColwiseParallel{.output_layouts = Replicate{}}},
      {"cross", ColwiseParallel{.output_layouts = Replicate{}}},
      {"mixed", ColwiseParallel{.output_layouts = Replicate{}}},
      {"*.out_proj", RowwiseParallel{.input_layouts = Replicate{}}}};
  expect_like_one_process({.tensor = 2, .plan = split});
  expect_like_one_process({.length = 7, .tensor = 2, .plan = split});
  expect_like_one_process({.tensor = 2, .plan = split, .recomputes = true});
  // Split by heads: each rank has some heads of some positions.
  const ParallelizePlan by_heads{
      {"*.out_proj", RowwiseParallel{}},
      {"self_attn", ColwiseParallel{}},
      {"cross", ColwiseParallel{}},
      {"mixed", ColwiseParallel{}},
      {"separate", ColwiseParallel{}}};
  expect_like_one_process({.tensor = 2, .plan = by_heads});
  expect_like_one_process({.length = 7, .tensor = 2, .plan = by_heads});
  expect_like_one_process({.shard = 2, .tensor = 2, .plan = by_heads});
  expect_like_one_process({.tensor = 2, .plan = by_heads, .recomputes = true});
}

TEST(AttentionLayers, AreTheirOwnOutsideOfADividedSequence) {
  Tensor whole;
  (void)step_alone(8, whole);
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.parallel = {.context = 2}, .world = world});
    const auto model = accelerator.prepare(std::make_shared<Net>());
    const Given given(8);
    EXPECT_TRUE(torch::equal(model(given.x, given.mask, given.memory), whole));
  });
}

TEST(AttentionLayers, RefuseWhatTheyCannotDo) {
  const auto refuse = [](const ContextParallelOptions& options,
                         const std::string& why) {
    expect_error<ConfigError>(
        [&] {
          run_on_ranks(2, [&](const WorldOptions& world) {
            const Accelerator accelerator(
                {.parallel = {.context = 2}, .world = world});
            const auto model = accelerator.prepare(std::make_shared<Net>());
            const Given given(8);
            const ContextParallelScope sequence =
                accelerator.maybe_context_parallel({}, {}, {}, options);
            (void)model(given.x, given.mask, given.memory);
          });
        },
        why);
  };
  refuse({.sequence_length = 10}, "8 positions");
}

}  // namespace attention_layers_test
}  // namespace accelerate
