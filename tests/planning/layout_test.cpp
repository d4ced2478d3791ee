// Tests plans of transformers: the cost of layouts, and which one is chosen.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>
#include <accelerate/planning.h>

#include "planning/layout/collective_costs.h"
#include "planning/layout/layout_memory.h"
#include "planning/layout/search.h"
#include "planning/layout/step_time.h"
#include "support/expect_error.h"

namespace accelerate {
namespace layout_test {

using detail::collective;
using detail::CollectivePattern;
using detail::LayoutCase;
using detail::model_costs;
using detail::RankPrograms;
using detail::RankResources;
using detail::seconds_alone;
using detail::simulate_step;
using detail::transfer;
using testing::expect_error;
using ::testing::HasSubstr;

LayoutMemory layout_memory(const LayoutCase& of) {
  detail::KeptMicroBatches kept;
  return detail::layout_memory(of, kept);
}

TransformerShape llama(std::int64_t layers = 32) {
  return {
      .num_layers = layers,
      .hidden_size = 4096,
      .num_heads = 32,
      .vocabulary = 32'000,
      .intermediate_size = 11'008,
      .is_gated = true};
}

TransformerShape mixture() {
  TransformerShape shape = llama(16);
  shape.num_experts = 32;
  shape.top_k = 2;
  shape.expert_intermediate_size = 4096;
  return shape;
}

LayoutPlanOptions options_of(int ranks) {
  return {
      .num_ranks = ranks,
      .cluster = ClusterSpeeds(),
      .sequence_length = 4096,
      .batch_tokens = 4096 * 256};
}

TEST(TransformerShape, CountsParameters) {
  // Llama 2 7B has 6.738 billion parameters.
  EXPECT_NEAR(
      static_cast<double>(llama().num_parameters()), 6.738e9, 0.01 * 6.738e9);
  // GPT-2 has 124 million, with its embedding counted once.
  const TransformerShape gpt2{
      .num_layers = 12,
      .hidden_size = 768,
      .num_heads = 12,
      .vocabulary = 50'257,
      .is_tied = true};
  EXPECT_NEAR(
      static_cast<double>(gpt2.num_parameters()), 124.4e6, 0.01 * 124.4e6);
  // Mixtral 8x7B: 46.7 billion, 12.9 of them per token.
  const TransformerShape mixtral{
      .num_layers = 32,
      .hidden_size = 4096,
      .num_heads = 32,
      .vocabulary = 32'000,
      .num_kv_heads = 8,
      .intermediate_size = 14'336,
      .is_gated = true,
      .num_experts = 8,
      .top_k = 2};
  EXPECT_NEAR(
      static_cast<double>(mixtral.num_parameters()), 46.7e9, 0.01 * 46.7e9);
  EXPECT_NEAR(
      static_cast<double>(mixtral.num_active_parameters()),
      12.9e9,
      0.01 * 12.9e9);
}

TEST(TransformerShape, CountsWhatDiffersFromLayerToLayer) {
  TransformerShape shape{
      .num_layers = 3,
      .hidden_size = 8,
      .num_heads = 2,
      .vocabulary = 10,
      .num_kv_heads = 1,
      .head_size = 6,
      .intermediate_size = 32,
      .is_tied = true};
  // Queries and results of 12 features, keys and values of 6, and the weights
  // and biases of two norms.
  const std::int64_t attention = 8 * (2 * 12 + 2 * 6) + 4 * 8;
  const std::int64_t dense = attention + 2 * 8 * 32;
  EXPECT_EQ(shape.num_parameters(), 80 + 3 * dense);
  EXPECT_EQ(shape.num_active_parameters(), 80 + 3 * dense);
  shape.num_experts = 4;
  shape.top_k = 1;
  shape.expert_intermediate_size = 5;
  shape.shared_intermediate_size = 7;
  shape.num_dense_layers = 1;
  const std::int64_t router = 4 * 8, shared = 2 * 8 * 7, expert = 2 * 8 * 5;
  const std::int64_t common = 80 + dense + 2 * (attention + router + shared);
  EXPECT_EQ(shape.num_parameters(), common + 2 * 4 * expert);
  EXPECT_EQ(shape.num_active_parameters(), common + 2 * expert);
}

// A factor applies at its token count; ranks along `tensor` count fewer tokens.
TEST(ClusterSpeeds, SlowLayersDownByTokens) {
  TransformerShape shape = llama();
  LayoutPlanOptions options = options_of(1);
  options.cluster->seconds_per_operator = 0;
  options.num_ranks = 1;
  const auto tokens = static_cast<double>(options.sequence_length);
  const auto computing = [&](std::int64_t micro_batch) {
    LayoutPlanOptions all = options;
    all.batch_tokens = micro_batch * options.sequence_length;
    return simulate_layout(shape, {.micro_batch = micro_batch}, all)
        .times.computing;
  };
  const double one = computing(1), two = computing(2), four = computing(4);
  options.cluster->measured.layer_slowdowns = {
      {.tokens = tokens, .factor = 1}, {.tokens = 4 * tokens, .factor = 3}};
  EXPECT_EQ(computing(1), one);
  const double head_and_embedding = 0.05;
  EXPECT_NEAR(computing(2) / two, 2, head_and_embedding);
  EXPECT_NEAR(computing(4) / four, 3, head_and_embedding);
  EXPECT_NEAR(computing(8) / (2 * four), 3, head_and_embedding);
  options.cluster->measured.layer_slowdowns = {{.tokens = tokens, .factor = 0}};
  EXPECT_THROW(computing(1), ConfigError);
  options.cluster->measured.layer_slowdowns = {
      {.tokens = 4 * tokens, .factor = 3}, {.tokens = tokens, .factor = 1}};
  expect_error<ConfigError>(
      [&] { computing(1); }, "layer_slowdowns in ascending order of tokens");
}

TEST(ClusterSpeeds, SlowSplitLayersDownByTheirDegree) {
  LayoutPlanOptions options = options_of(1);
  options.cluster->seconds_per_operator = 0;
  options.batch_tokens = options.sequence_length;
  const auto tokens = static_cast<double>(options.sequence_length);
  const auto computing = [&](int tensor) {
    options.num_ranks = tensor;
    return simulate_layout(llama(), {.tensor = tensor}, options)
        .times.computing;
  };
  const double one = computing(1), two = computing(2), four = computing(4);
  options.cluster->measured.layer_slowdowns = {
      {.tokens = tokens, .factor = 1},
      {.tokens = tokens / 2, .factor = 1, .tensor = 2},
      {.tokens = tokens, .factor = 3, .tensor = 2}};
  const double head_and_embedding = 0.05;
  EXPECT_EQ(computing(1), one);
  EXPECT_NEAR(computing(2) / two, 3, head_and_embedding);
  EXPECT_NEAR(computing(4) / four, 3, head_and_embedding);
  std::swap(
      options.cluster->measured.layer_slowdowns.front(),
      options.cluster->measured.layer_slowdowns.back());
  EXPECT_THROW(computing(1), ConfigError);
}

// Each parameter costs the same, however small a rank's shard of it is.
TEST(ClusterSpeeds, CountParametersThatAreStepped) {
  const TransformerShape shape = llama();
  LayoutPlanOptions options = options_of(16);
  const auto optimizer = [&](const TrainingLayout& layout, double seconds) {
    options.cluster->measured.seconds_per_stepped_parameter = seconds;
    return simulate_layout(shape, layout, options).times.optimizer;
  };
  const TrainingLayout whole{
      .replicate = 4, .tensor = 4, .num_micro_batches = 64};
  const TrainingLayout sharded{
      .shard = 4,
      .tensor = 4,
      .sharding = LayoutSharding::optimizer,
      .num_micro_batches = 64};
  // Two norms and seven matrices with a bias each, plus the embedding and the
  // head.
  const auto tensors = static_cast<double>(shape.num_layers * 18 + 2);
  for (const TrainingLayout& layout : {whole, sharded}) {
    EXPECT_NEAR(
        optimizer(layout, 1e-3) - optimizer(layout, 0), 1e-3 * tensors, 1e-6);
  }
}

TEST(ClusterSpeeds, OfExpertsChangeTheirStep) {
  TransformerShape shape = llama();
  LayoutPlanOptions options = options_of(16);
  const TrainingLayout layout{
      .replicate = 4, .tensor = 4, .num_micro_batches = 64};
  const auto seconds = [&] {
    return simulate_layout(shape, layout, options).times.step_seconds;
  };
  const double dense = seconds();
  options.cluster->expert_flops = options.cluster->flops / 10;
  EXPECT_EQ(seconds(), dense);
  shape.num_experts = 8;
  shape.top_k = 2;
  const double slow = seconds();
  options.cluster->expert_flops = options.cluster->flops;
  const double fast = seconds();
  EXPECT_GT(slow, 2 * fast);
  options.cluster->expert_flops = 0;
  EXPECT_EQ(seconds(), fast);
  // In each of 32 layers, each rank routes its micro-batches in the forward,
  // and in the backward at twice the cost.
  options.cluster->measured.seconds_per_routed_token = 1e-6;
  EXPECT_NEAR(seconds() - fast, 3 * 32 * 64 * 4096 * 1e-6, 1e-6 * fast);
}

TEST(ClusterSpeeds, ChangeTheStep) {
  const auto seconds = [](auto&& change) {
    LayoutPlanOptions options = options_of(16);
    change(*options.cluster, options);
    return simulate_layout(
               llama(),
               {.replicate = 4, .tensor = 4, .num_micro_batches = 64},
               options)
        .times.step_seconds;
  };
  const double before = seconds([](auto&, auto&) {});
  EXPECT_LT(seconds([](auto& c, auto&) { c.flops *= 2; }), 0.7 * before);
  EXPECT_LT(
      seconds([](auto& c, auto&) { c.memory_bytes_per_second *= 10; }),
      0.98 * before);
  EXPECT_GT(
      seconds([](auto& c, auto&) { c.seconds_per_operator *= 10; }), before);
  EXPECT_GT(
      seconds([](auto& c, auto&) { c.inside_node.latency_seconds = 1e-3; }),
      1.1 * before);
  EXPECT_GT(
      seconds([](auto& c, auto&) { c.between_nodes.bytes_per_second = 1e8; }),
      1.1 * before);
  EXPECT_GT(
      seconds([](auto& c, auto&) { c.attention_flops = c.flops / 10; }),
      1.02 * before);
  EXPECT_EQ(
      seconds([](auto& c, auto&) { c.attention_flops = c.flops; }), before);
  EXPECT_GT(
      seconds([](auto& c, auto&) { c.optimizer_bytes_per_second = 1e11; }),
      1.02 * before);
  EXPECT_EQ(
      seconds([](auto& c, auto&) {
        c.optimizer_bytes_per_second = c.memory_bytes_per_second;
      }),
      before);
  EXPECT_GT(
      seconds([](auto& c, auto&) {
        c.measured.loss_bytes_per_second = c.memory_bytes_per_second / 10;
      }),
      1.001 * before);
  EXPECT_EQ(
      seconds([](auto& c, auto&) {
        c.measured.loss_bytes_per_second = c.memory_bytes_per_second;
      }),
      before);
  // Groups along `tensor` no longer fit into a node.
  EXPECT_GT(
      seconds([](auto& c, auto&) { c.ranks_per_node = 2; }), 1.05 * before);
  const auto wide = [&](double flops) {
    return seconds([flops](auto& c, auto& o) {
      o.precision = FloatType::fp32;
      c.fp32_flops = flops;
    });
  };
  EXPECT_EQ(wide(0), wide(200e12));
  EXPECT_LT(wide(400e12), 0.8 * wide(0));
}

TEST(Links, HaveTheSpeedsOfTheirNames) {
  EXPECT_NEAR(link_named("nvlink4").bytes_per_second, 360e9, 1);
  EXPECT_NEAR(link_named("nvlink4").latency_seconds, 3e-6, 1e-12);
  EXPECT_NEAR(link_named("ndr").bytes_per_second, 45e9, 1);
  EXPECT_NEAR(link_named("ndr").latency_seconds, 8e-6, 1e-12);
  testing::expect_error<ConfigError>(
      [] { static_cast<void>(link_named("ethernet")); },
      "[planning] the link must be one of nvlink3, nvlink4, nvlink5, pcie4, "
      "pcie5, hdr, ndr, xdr, but is \"ethernet\"");
}

TEST(Collectives, TakeWhatTheirRingsTake) {
  ClusterSpeeds cluster;
  cluster.ranks_per_node = 4;
  cluster.inside_node = {1e-6, 100e9};
  cluster.between_nodes = {1e-5, 10e9};
  RankPrograms programs(1);
  const RankResources rank = detail::add_rank(programs, cluster, 16);
  const auto seconds = [&](CollectivePattern kind, int size, int stride) {
    return seconds_alone(
        programs, collective(cluster, rank, kind, {size, stride}, 1e9, ""));
  };
  EXPECT_EQ(seconds(CollectivePattern::all_reduce, 1, 1), 0);
  // Within a node: 3/4 of a gigabyte, and two steps.
  EXPECT_NEAR(
      seconds(CollectivePattern::all_gather, 4, 1), 0.0075 + 2e-6, 1e-9);
  EXPECT_NEAR(
      seconds(CollectivePattern::all_reduce, 4, 1), 2 * (0.0075 + 2e-6), 1e-9);
  // One rank on each of four nodes.
  EXPECT_NEAR(
      seconds(CollectivePattern::reduce_scatter, 4, 4), 0.075 + 2e-5, 1e-9);
  // Sixteen ranks on four nodes: the four links of a node share the bytes that
  // enter it.
  EXPECT_NEAR(
      seconds(CollectivePattern::all_gather, 16, 1),
      0.75 / 4 / 10 + 2e-6 + 2e-5,
      1e-9);
  // A rank sends 3 of its 16 parts within its node, and 12 to other nodes.
  EXPECT_NEAR(
      seconds(CollectivePattern::all_to_all, 16, 1),
      12.0 / 16 / 10 + 3e-6 + 3e-5,
      1e-9);
}

TEST(Collectives, TakeTimeOfSharedProcessors) {
  ClusterSpeeds cluster;
  cluster.measured.shared_processors = 2;
  cluster.ranks_per_node = 8;
  cluster.inside_node = {0, 1e9};
  RankPrograms programs(1);
  const RankResources rank = detail::add_rank(programs, cluster, 4);
  // 2 x 3/4 seconds of a processor; each of four ranks has half a processor.
  EXPECT_NEAR(
      seconds_alone(
          programs,
          collective(
              cluster, rank, CollectivePattern::all_reduce, {4, 1}, 1e9, "")),
      3,
      1e-9);
  // Four steps of a millisecond each, per message, for one and for ten
  // messages.
  cluster.inside_node.latency_seconds = 1e-3;
  for (const double count : {1, 10}) {
    const detail::SimulatedMessage message = collective(
        cluster, rank, CollectivePattern::all_reduce, {4, 1}, 1e9, "", {count});
    EXPECT_EQ(message.latency, 0);
    EXPECT_NEAR(seconds_alone(programs, message), 3 + 4e-3 * count, 1e-9);
  }
  // Each rank has three others.
  cluster.measured.seconds_per_message = 1e-2;
  EXPECT_NEAR(
      seconds_alone(
          programs,
          collective(
              cluster,
              rank,
              CollectivePattern::reduce_scatter,
              {4, 1},
              1e9,
              "",
              {10, true})),
      1.5 + 10 * 3e-2,
      1e-9);
  EXPECT_NEAR(
      seconds_alone(programs, transfer(cluster, rank, 1, 1e9, "")),
      2 + 1e-2,
      1e-9);
}

// All-reduces for the experts of two layers, two per token, take as long as the
// all-reduces of two more layers without experts.
TEST(TensorTraffic, SumsARowForEachExpertOfAToken) {
  LayoutPlanOptions options = options_of(2);
  options.cluster->inside_node = {0, 1e9};
  options.expert_imbalance = 1;
  TransformerShape dense = llama(2), experts = dense;
  experts.num_experts = 8;
  experts.top_k = 2;
  const auto travelling = [&](const TransformerShape& shape) {
    TrainingLayout layout;
    layout.tensor = 2;
    return simulate_step({model_costs(shape), layout, options})
        .travelling.at(detail::traffic::kTensor);
  };
  // Per layer, one all-reduce for attention and one for the MLP, forward and
  // backward; for experts, two more of the same size.
  const double dense_seconds = travelling(dense);
  TransformerShape none = dense;
  none.num_layers = 1;
  const double per_layer = dense_seconds - travelling(none);
  EXPECT_NEAR(
      travelling(experts) - dense_seconds,
      2 * per_layer / 2,
      1e-6 * dense_seconds);
}

// Two ranks on a machine with two processors: messages cost a rank its own
// processor time.
LayoutPlanOptions shared_options() {
  LayoutPlanOptions options = options_of(2);
  options.cluster->ranks_per_node = 2;
  options.cluster->measured.shared_processors = 2;
  options.cluster->inside_node = {0, 1e18};
  options.batch_tokens = options.sequence_length;
  return options;
}

double travelling(
    const LayoutPlanOptions& options,
    const TransformerShape& shape,
    const TrainingLayout& layout,
    const char* what) {
  return simulate_step({model_costs(shape), layout, options})
      .travelling.at(what);
}

TEST(TensorTraffic, TakesWhatSumsBetweenLayersWereMeasuredToTake) {
  LayoutPlanOptions options = shared_options();
  const auto tokens = static_cast<double>(options.sequence_length);
  const auto seconds = [&] {
    return travelling(
        options, llama(), {.tensor = 2}, detail::traffic::kTensor);
  };
  const double unmeasured = seconds();
  EXPECT_NEAR(unmeasured, 0, 1e-6);
  options.cluster->measured.layer_slowdowns = {
      {.tokens = tokens, .factor = 1},
      {.tokens = tokens / 2, .factor = 1, .tensor = 2, .reduce_seconds = 1e-3},
      {.tokens = 2 * tokens, .factor = 1, .tensor = 2, .reduce_seconds = 3e-3}};
  // Four per layer, one after the embedding, and one before the head.
  EXPECT_NEAR(seconds(), (4 * 32 + 2) * 2e-3, 1e-6);
  // The measured all-reduces are between two ranks, so they do not apply to
  // four.
  LayoutPlanOptions four = options;
  four.num_ranks = four.cluster->ranks_per_node = 4;
  EXPECT_NEAR(
      travelling(four, llama(), {.tensor = 4}, detail::traffic::kTensor),
      unmeasured,
      1e-6);
  options.cluster->measured.layer_slowdowns.back().reduce_seconds = -1;
  EXPECT_THROW(simulate_layout(llama(), {.tensor = 2}, options), ConfigError);
}

TEST(ContextTraffic, TakesWhatBlocksOfARingCost) {
  LayoutPlanOptions options = shared_options();
  const auto seconds = [&] {
    return simulate_layout(llama(), {.context = 2}, options).times.step_seconds;
  };
  const double free = seconds();
  options.cluster->measured.seconds_per_ring_block = 1e-3;
  // Two blocks per layer in the forward, and twice their cost in the backward.
  EXPECT_NEAR(seconds() - free, 32 * 2 * 3 * 1e-3, 1e-6);
  // Ranks with their own processors compute meanwhile.
  options.cluster->measured.shared_processors = 0;
  const double alone = seconds();
  options.cluster->measured.seconds_per_ring_block = 0;
  EXPECT_EQ(seconds(), alone);
  options.cluster->measured.seconds_per_ring_block = -1;
  EXPECT_THROW(seconds(), ConfigError);
}

// Tokens are sent in messages between pairs of ranks, to the experts and back,
// in the forward and the backward; ranks first exchange the counts.
TEST(ExpertTraffic, CountsMessagesBetweenRanks) {
  LayoutPlanOptions options = shared_options();
  options.num_ranks = options.cluster->ranks_per_node = 4;
  options.batch_tokens = 4 * options.sequence_length;
  const auto seconds = [&](int expert) {
    return simulate_layout(
               mixture(), {.replicate = 4, .expert = expert}, options)
        .times.step_seconds;
  };
  const double layers = 16;
  const double free = seconds(4), replicas = seconds(1);
  options.cluster->measured.seconds_per_message = 1e-3;
  EXPECT_NEAR(seconds(4) - free, layers * 4 * 3 * 1e-3, 1e-6);
  EXPECT_NEAR(seconds(1), replicas, 1e-6);
  // A gather among four ranks has two steps; reducing gradients adds more.
  const double with_messages = seconds(4);
  options.cluster->inside_node.latency_seconds = 1e-3;
  EXPECT_GT(seconds(4) - with_messages, layers * 2 * 1e-3 - 1e-6);
}

TEST(LayoutMemory, CountsStateAsTrainingKeepsIt) {
  const auto model = model_costs(llama());
  const double parameters = static_cast<double>(llama().num_parameters());
  const auto memory_of = [&](TrainingLayout layout) {
    LayoutPlanOptions options = options_of(layout.num_ranks());
    layout.num_micro_batches = 256 / layout.replicate / layout.shard;
    return layout_memory({model, layout, options});
  };
  const auto near = [&](std::uint64_t bytes, double per_parameter) {
    EXPECT_NEAR(
        static_cast<double>(bytes),
        per_parameter * parameters,
        0.001 * per_parameter * parameters);
  };
  const LayoutMemory whole = memory_of({.replicate = 8});
  near(whole.weights, 2);
  near(whole.gradients, 2);
  near(whole.optimizer_state, 12);
  EXPECT_EQ(whole.gathered, 0);
  const LayoutMemory zero1 =
      memory_of({.shard = 8, .sharding = LayoutSharding::optimizer});
  near(zero1.weights, 2);
  near(zero1.optimizer_state, 12.0 / 8);
  const LayoutMemory zero2 =
      memory_of({.shard = 8, .sharding = LayoutSharding::gradients});
  near(zero2.gradients, 4.0 / 8);
  const LayoutMemory full =
      memory_of({.shard = 8, .sharding = LayoutSharding::parameters});
  EXPECT_EQ(full.weights, 0);
  near(full.optimizer_state, 12.0 / 8);
  near(memory_of({.tensor = 4}).weights, 2.0 / 4);
  // Stages differ in the embedding and the head.
  const LayoutMemory stages = memory_of({.pipeline = 4});
  EXPECT_NEAR(
      static_cast<double>(stages.weights),
      2 * parameters / 4,
      0.1 * 2 * parameters / 4);
}

LayoutPlanOptions with_disk(int ranks, double bytes_per_second = 5e9) {
  LayoutPlanOptions options = options_of(ranks);
  options.cluster->disk_bytes_per_second = bytes_per_second;
  return options;
}

TEST(LayoutMemory, IsBuffersAndUnitsWhereADiskKeepsTheRest) {
  const double parameters = static_cast<double>(llama().num_parameters());
  for (const int shards : {1, 8}) {
    for (const FloatType precision : {FloatType::fp32, FloatType::bf16}) {
      TrainingLayout layout{
          .shard = shards,
          .sharding =
              shards == 1 ? LayoutSharding::none : LayoutSharding::parameters,
          .num_micro_batches = 256 / shards,
          .recomputes = true,
          .on_disk = true};
      LayoutPlanOptions options = with_disk(shards);
      options.precision = precision;
      const LayoutMemory memory =
          simulate_layout(llama(), layout, options).memory;
      EXPECT_EQ(memory.weights + memory.gradients + memory.optimizer_state, 0U);
      // fp32 values, gradients and two moments, and copies in 16 bits.
      const double expected =
          (precision == FloatType::fp32 ? 16 : 18) * parameters / shards;
      EXPECT_NEAR(
          static_cast<double>(memory.on_disk), expected, 0.001 * expected);
      layout.on_disk = false;
      const LayoutMemory before =
          simulate_layout(llama(), layout, options).memory;
      EXPECT_EQ(before.on_disk, 0U);
      EXPECT_GT(memory.gathered, before.gathered);
      EXPECT_EQ(memory.activations, before.activations);
    }
  }
}

TEST(StepTime, WaitsForTheDiskThatComputingDoesNotHide) {
  const TrainingLayout layout{
      .shard = 8,
      .sharding = LayoutSharding::parameters,
      .num_micro_batches = 32,
      .on_disk = true};
  TrainingLayout in_memory = layout;
  in_memory.on_disk = false;
  const auto step = [&](double speed) {
    return simulate_layout(llama(), layout, with_disk(8, speed)).times;
  };
  const LayoutTimes memory =
      simulate_layout(llama(), in_memory, with_disk(8)).times;
  EXPECT_EQ(memory.disk, 0);
  EXPECT_DOUBLE_EQ(step(1e18).step_seconds, memory.step_seconds);
  const LayoutTimes slow = step(1e9);
  EXPECT_NEAR(slow.step_seconds, memory.step_seconds + slow.disk, 1e-9);
  // All ranks of the node share it: each micro-step reads copies of 16 bits
  // twice, and adds to the gradient; the step reads and writes fp32 values and
  // two moments, reads the gradient and writes the copies.
  const double per_parameter = 32 * (4 + 8) - 4 + 2 * 12 + 4 + 2;
  const double whole =
      per_parameter * static_cast<double>(llama().num_parameters()) / 1e9;
  EXPECT_NEAR(slow.disk, whole - memory.step_seconds, 0.001 * whole);
}

TEST(Plan, UsesADiskWhereMemoryIsTooSmall) {
  LayoutPlanOptions options = with_disk(1);
  options.cluster->memory_bytes = 24'000'000'000;
  const LayoutPlan plan = plan_layout(llama(), options);
  ASSERT_FALSE(plan.layouts().empty());
  for (const PlannedLayout& each : plan.layouts())
    EXPECT_TRUE(each.layout.on_disk);
  EXPECT_THAT(plan.explain(), HasSubstr("1 rank, on disk, micro-batch"));
  EXPECT_THAT(plan.explain(), HasSubstr("\n  disk    "));
  options.offload_directory = "/a disk";
  const std::string text = plan_layout(llama(), options).config_text();
  EXPECT_THAT(text, HasSubstr("distributed_type: DEEPSPEED\n"));
  EXPECT_THAT(text, HasSubstr("  zero_stage: 3\n"));
  EXPECT_THAT(text, HasSubstr("  offload_optimizer_device: nvme\n"));
  EXPECT_THAT(text, HasSubstr("  offload_param_nvme_path: \"/a disk\"\n"));
  LayoutPlanOptions lomo = with_disk(1);
  lomo.optimizer = "lomo";
  for (const PlannedLayout& each : plan_layout(llama(), lomo).layouts())
    EXPECT_FALSE(each.layout.on_disk);
  options.on_disk = false;
  EXPECT_TRUE(plan_layout(llama(), options).layouts().empty());
  options.on_disk = std::nullopt;
  options.cluster->disk_bytes_per_second = 0;
  EXPECT_TRUE(plan_layout(llama(), options).layouts().empty());
  const TrainingLayout replicated{
      .replicate = 8, .num_micro_batches = 32, .on_disk = true};
  expect_error<ConfigError>(
      [&] { simulate_layout(llama(), replicated, with_disk(8)); },
      "parameters must be sharded, or on one rank, to lie on a disk");
  expect_error<ConfigError>(
      [&] {
        simulate_layout(
            llama(),
            {.num_micro_batches = 256, .on_disk = true},
            options_of(1));
      },
      "the cluster must have a disk");
}

TEST(LayoutMemory, KeepsFewerActivationsIfTold) {
  const auto model = model_costs(llama());
  const auto kept = [&](TrainingLayout layout) {
    const LayoutPlanOptions options = options_of(layout.num_ranks());
    layout.num_micro_batches = 64;
    return layout_memory({model, layout, options}).activations;
  };
  const auto plain = kept({});
  EXPECT_LT(kept({.recomputes = true}), plain / 4);
  EXPECT_LT(kept({.tensor = 4}), plain / 2);
  EXPECT_NEAR(
      static_cast<double>(kept({.context = 4})),
      static_cast<double>(plain) / 4,
      0.01 * static_cast<double>(plain));
  // The first stage of 1F1B keeps one micro-batch per stage; the first stage of
  // GPipe keeps all micro-batches.
  EXPECT_NEAR(
      static_cast<double>(kept({.pipeline = 4})),
      static_cast<double>(plain),
      0.15 * static_cast<double>(plain));
  EXPECT_GT(
      kept({.pipeline = 4, .schedule = PipelineScheduleKind::gpipe}),
      8 * plain);
  EXPECT_EQ(kept({.micro_batch = 2}) / plain, 2);
}

TEST(LayoutMemory, KeepsWhatTheScheduleKeeps) {
  TransformerShape shape = llama(16);
  shape.vocabulary = 16;
  const auto model = model_costs(shape);
  const auto kept = [&](TrainingLayout layout) {
    const LayoutPlanOptions options = options_of(layout.num_ranks());
    layout.num_micro_batches = 64;
    return static_cast<double>(
        layout_memory({model, layout, options}).activations);
  };
  const double all = kept({}), layer = all / 17;
  const auto near = [&](const TrainingLayout& layout, double layers) {
    EXPECT_NEAR(kept(layout), layers * layer, 0.02 * layers * layer)
        << layout.describe();
  };
  // A stage has 4 layers, plus the layer that is being computed.
  near({.pipeline = 4}, 4 * 4 + 1);
  near({.pipeline = 4, .schedule = PipelineScheduleKind::gpipe}, 64 * 4 + 1);
  near(
      {.pipeline = 4, .schedule = PipelineScheduleKind::zero_bubble},
      4 * 4 + 1);
  // Chunks of 2 layers: 2 x 3 warm-up forwards, 4 of the first chunk, and one.
  near(
      {.pipeline = 4,
       .schedule = PipelineScheduleKind::interleaved_1f1b,
       .num_chunks = 2},
      11 * 2 + 1);
  near(
      {.pipeline = 4,
       .schedule = PipelineScheduleKind::looped_bfs,
       .num_chunks = 2},
      128 * 2 + 1);
  // The last stage of a V is on the first rank.
  near(
      {.pipeline = 4,
       .schedule = PipelineScheduleKind::zero_bubble_v,
       .num_chunks = 2},
      8 * 2 + 1);
}

TEST(Stages, AreAsEqualAsLayersAllow) {
  const auto counts =
      [](const TransformerShape& shape, int pipeline, int chunks) {
        const auto model = model_costs(shape);
        const LayoutPlanOptions options = options_of(pipeline);
        const TrainingLayout layout{
            .pipeline = pipeline, .num_chunks = chunks, .num_micro_batches = 8};
        std::vector<std::int64_t> found;
        for (const auto& stage : detail::stages_of({model, layout, options}))
          found.push_back(stage.end - stage.begin);
        return found;
      };
  TransformerShape shape = llama(12);
  shape.vocabulary = 10;
  EXPECT_EQ(counts(shape, 4, 1), (std::vector<std::int64_t>{3, 3, 3, 3}));
  EXPECT_EQ(counts(shape, 2, 2), (std::vector<std::int64_t>{3, 3, 3, 3}));
  EXPECT_EQ(counts(shape, 12, 1), (std::vector<std::int64_t>(12, 1)));
  // The head now costs as much as two layers.
  shape.vocabulary = 100'000;
  const auto found = counts(shape, 4, 1);
  EXPECT_LT(found.back(), 3);
  EXPECT_EQ(found[0] + found[1] + found[2] + found[3], 12);
}

TEST(StepTime, HasTheBubbleOfTheSchedule) {
  TransformerShape shape = llama(32);
  shape.vocabulary = 16;
  LayoutPlanOptions options = options_of(8);
  options.cluster->between_nodes = options.cluster->inside_node = {0, 1e15};
  options.cluster->seconds_per_operator = 0;
  const auto share = [&](const char* schedule, int chunks, int micro) {
    options.batch_tokens = options.sequence_length * micro;
    const PlannedLayout planned = simulate_layout(
        shape,
        {.pipeline = 8,
         .schedule = parse_pipeline_schedule(schedule),
         .num_chunks = chunks,
         .num_micro_batches = micro},
        options);
    return planned.times.bubble /
        (planned.times.computing + planned.times.bubble);
  };
  for (const int micro : {8, 32}) {
    EXPECT_NEAR(share("1F1B", 1, micro), 7.0 / (micro + 7), 0.01);
    EXPECT_NEAR(share("GPipe", 1, micro), 7.0 / (micro + 7), 0.01);
    EXPECT_NEAR(
        share("Interleaved1F1B", 4, micro), 7.0 / (4 * micro + 7), 0.01);
    EXPECT_LT(share("ZBH1", 1, micro), 0.6 * share("1F1B", 1, micro));
  }
}

TEST(StepTime, GrowsWithSlowerLinks) {
  const TrainingLayout layouts[] = {
      {.replicate = 16, .num_micro_batches = 16},
      {.shard = 16,
       .sharding = LayoutSharding::parameters,
       .num_micro_batches = 16},
      {.context = 16, .num_micro_batches = 256},
      {.tensor = 16, .num_micro_batches = 256},
      {.shard = 16,
       .expert = 16,
       .sharding = LayoutSharding::gradients,
       .num_micro_batches = 16},
      {.pipeline = 16, .num_micro_batches = 256}};
  for (const TrainingLayout& layout : layouts) {
    double before = 0;
    for (const double factor : {1.0, 0.1, 0.01}) {
      LayoutPlanOptions options = options_of(16);
      options.cluster->inside_node.bytes_per_second *= factor;
      options.cluster->between_nodes.bytes_per_second *= factor;
      const double seconds =
          simulate_layout(mixture(), layout, options).times.step_seconds;
      EXPECT_GE(seconds, before * (1 - 1e-9)) << layout.describe();
      if (factor == 0.01) {
        EXPECT_GT(seconds, 1.02 * before) << layout.describe();
      }
      before = seconds;
    }
  }
}

TEST(StepTime, AddsUp) {
  for (const TrainingLayout& layout :
       {TrainingLayout{.replicate = 8, .num_micro_batches = 32},
        TrainingLayout{
            .shard = 4,
            .expert = 4,
            .tensor = 2,
            .sharding = LayoutSharding::parameters,
            .num_micro_batches = 64,
            .recomputes = true},
        TrainingLayout{
            .shard = 2,
            .pipeline = 4,
            .sharding = LayoutSharding::optimizer,
            .num_micro_batches = 128}}) {
    const LayoutTimes times =
        simulate_layout(mixture(), layout, options_of(8)).times;
    double sum = times.computing + times.optimizer + times.bubble;
    for (const auto& [kind, seconds] : times.exposed) sum += seconds;
    EXPECT_NEAR(sum, times.step_seconds, 0.02 * times.step_seconds)
        << layout.describe();
    // A step is not faster than its products.
    const double flops = 6.0 *
        static_cast<double>(mixture().num_active_parameters()) * 4096 * 256;
    EXPECT_GT(times.step_seconds, 0.9 * flops / (8 * 400e12));
  }
}

TEST(Search, TriesEveryWayThatDivides) {
  const auto model = model_costs(mixture());
  LayoutPlanOptions options = options_of(8);
  std::set<std::string> degrees;
  for (const TrainingLayout& layout : detail::all_layouts(model, options)) {
    EXPECT_EQ(detail::layout_complaint(model, layout, options), "");
    EXPECT_EQ(
        layout.replicate * layout.shard * layout.micro_batch *
            layout.num_micro_batches,
        256);
    degrees.insert(
        layout.describe().substr(0, layout.describe().find(", micro")));
  }
  for (const char* const expected :
       {"replicate 8",
        "shard 8 (ZeRO-1)",
        "shard 8 (parameters), expert 8",
        "replicate 2, shard 4 (ZeRO-2), expert 8",
        "tensor 8",
        "context 2, tensor 2, pipeline 2 1F1B",
        "pipeline 8 ZBH1",
        "pipeline 4 Interleaved1F1B x 2, tensor 2"}) {
    if (std::string_view(expected).starts_with("pipeline 4")) {
      EXPECT_TRUE(degrees.contains("tensor 2, pipeline 4 Interleaved1F1B x 2"));
      continue;
    }
    EXPECT_TRUE(degrees.contains(expected)) << expected;
  }
  options.tensor = 4;
  options.recomputes = true;
  for (const TrainingLayout& layout : detail::all_layouts(model, options)) {
    EXPECT_EQ(layout.tensor, 4);
    EXPECT_TRUE(layout.recomputes);
  }
}

TEST(Plan, ChoosesTheFastestThatFits) {
  const LayoutPlan plan = plan_layout(llama(), options_of(16));
  ASSERT_FALSE(plan.layouts().empty());
  for (const PlannedLayout& each : plan.layouts()) {
    EXPECT_LE(static_cast<double>(each.memory.total()), 0.92 * 80e9)
        << each.layout.describe();
    EXPECT_GE(each.times.step_seconds, plan.best().times.step_seconds);
    EXPECT_EQ(each.layout.num_ranks(), 16);
  }
  // Simulating the layout alone gives the same time.
  EXPECT_EQ(
      simulate_layout(llama(), plan.best().layout, options_of(16))
          .times.step_seconds,
      plan.best().times.step_seconds);
}

TEST(Plan, DividesMoreIfThereIsLessMemory) {
  LayoutPlanOptions options = options_of(8);
  options.cluster->memory_bytes = 1'000'000'000'000;
  const LayoutPlan roomy = plan_layout(llama(), options);
  options.cluster->memory_bytes = 20'000'000'000;
  const LayoutPlan tight = plan_layout(llama(), options);
  EXPECT_LT(tight.best().memory.total(), roomy.best().memory.total());
  EXPECT_LE(roomy.best().times.step_seconds, tight.best().times.step_seconds);
  EXPECT_FALSE(roomy.best().layout.recomputes);
  options.cluster->memory_bytes = 1'000'000'000;
  const LayoutPlan none = plan_layout(llama(), options);
  EXPECT_TRUE(none.layouts().empty());
  expect_error<ConfigError>(
      [&] { static_cast<void>(none.best()); },
      "no layout of 8 ranks fits into");
  EXPECT_THAT(none.explain(), HasSubstr("Nothing fits. The smallest:"));
}

TEST(Plan, CountsTokensOfWholeSamples) {
  LayoutPlanOptions options = options_of(1);
  options.cluster->memory_bytes = 1'000'000'000'000;
  const auto rate = [&](std::int64_t batch_tokens) {
    options.batch_tokens = batch_tokens;
    const std::string text = scaling_table(llama(), options, {1});
    return text.substr(text.find('\n'));
  };
  EXPECT_EQ(rate(3 * 4096 + 4095), rate(3 * 4096));
  // A step has at least one sample.
  EXPECT_EQ(rate(100), rate(4096));
}

TEST(Plan, KeepsTensorParallelismWithinANode) {
  LayoutPlanOptions options = options_of(64);
  options.cluster->memory_bytes = 24'000'000'000;
  options.cluster->between_nodes.bytes_per_second = 3e9;
  options.batch_tokens = 4096 * 64;
  const LayoutPlan plan = plan_layout(llama(64), options);
  EXPECT_LE(plan.best().layout.tensor, 8) << plan.explain();
}

TEST(Plan, SaysWhyOthersLose) {
  const LayoutPlan plan = plan_layout(mixture(), options_of(16));
  const std::string text = plan.explain(6);
  EXPECT_THAT(text, HasSubstr("16 ranks, 8 on a node"));
  EXPECT_THAT(text, HasSubstr("best: " + plan.best().layout.describe()));
  EXPECT_THAT(text, HasSubstr("why not"));
  EXPECT_THAT(text, HasSubstr("docs/guides/planning.md"));
}

TEST(Plan, AlignsTheColumnsOfOthers) {
  LayoutPlanOptions options = options_of(512);
  options.batch_tokens = 4096 * 2048;
  const std::string text = plan_layout(llama(), options).explain(20);
  std::istringstream lines(text.substr(text.find("\nothers") + 1));
  std::string line;
  std::getline(lines, line);
  const std::size_t step = line.find("step");
  bool is_wide = false;
  while (std::getline(lines, line) && !line.empty()) {
    EXPECT_EQ(line[step - 1], ' ') << line;
    EXPECT_TRUE(std::isdigit(line[step])) << line;
    is_wide = is_wide || line[step - 2] != ' ';
  }
  EXPECT_TRUE(is_wide);
  EXPECT_GT(step, 62U);
}

TEST(Plan, WritesItsBestAsAConfigFile) {
  LayoutPlanOptions options = options_of(16);
  options.shard = 4;
  options.sharding = LayoutSharding::gradients;
  options.tensor = 2;
  options.pipeline = 2;
  const std::string text = plan_layout(llama(), options).config_text();
  EXPECT_THAT(text, HasSubstr("distributed_type: DEEPSPEED\n"));
  EXPECT_THAT(text, HasSubstr("num_processes: 16\n"));
  EXPECT_THAT(text, HasSubstr("num_machines: 2\n"));
  EXPECT_THAT(text, HasSubstr("  parallelism_config_dp_shard_size: 4\n"));
  EXPECT_THAT(text, HasSubstr("  parallelism_config_tp_size: 2\n"));
  EXPECT_THAT(text, HasSubstr("  parallelism_config_pp_size: 2\n"));
  EXPECT_THAT(text, HasSubstr("  zero_stage: 2\n"));
  EXPECT_THAT(text, HasSubstr("PipelineOptions{.schedule"));
}

TEST(Plan, PrintsAPageForManyRanks) {
  LayoutPlanOptions options = options_of(1);
  options.batch_tokens = 4096 * 1024;
  const std::string page =
      scaling_table(llama(), options, {8, 64, 512, 4096, 16'384});
  EXPECT_EQ(std::count(page.begin(), page.end(), '\n'), 6);
  for (const char* const ranks :
       {"\n8 ", "\n64 ", "\n512 ", "\n4096 ", "\n16384 "})
    EXPECT_THAT(page, HasSubstr(ranks));
}

TEST(LayoutOptions, AreTheDegreesThatWereGiven) {
  LayoutPlanOptions options = options_of(32);
  options.replicate = 2;
  options.shard = 2;
  options.expert = 4;
  options.context = 2;
  options.tensor = 2;
  options.pipeline = 2;
  options.sharding = LayoutSharding::gradients;
  options.recomputes = true;
  options.cluster->memory_bytes = 1'000'000'000'000;
  const LayoutPlan plan = plan_layout(mixture(), options);
  ASSERT_FALSE(plan.layouts().empty());
  for (const PlannedLayout& each : plan.layouts()) {
    TrainingLayout expected = each.layout;
    expected.replicate = expected.shard = expected.context = expected.tensor =
        expected.pipeline = 2;
    expected.expert = 4;
    expected.sharding = LayoutSharding::gradients;
    expected.recomputes = true;
    EXPECT_EQ(each.layout, expected);
  }
}

TEST(LayoutOptions, ChangeThePlan) {
  const TrainingLayout layout{
      .shard = 8,
      .expert = 8,
      .sharding = LayoutSharding::gradients,
      .num_micro_batches = 32};
  const LayoutPlanOptions options = options_of(8);
  const PlannedLayout before = simulate_layout(mixture(), layout, options);
  const auto with = [&](auto&& change) {
    LayoutPlanOptions changed = options;
    change(changed);
    return simulate_layout(mixture(), layout, changed);
  };
  const auto longer = with([](auto& o) {
    o.sequence_length = 8192;
    o.batch_tokens *= 2;
  });
  EXPECT_GT(longer.times.step_seconds, 1.9 * before.times.step_seconds);
  EXPECT_GT(longer.memory.activations, 1.9 * before.memory.activations);
  const auto wide = with([](auto& o) { o.precision = FloatType::fp32; });
  EXPECT_GT(wide.times.computing, 1.5 * before.times.computing);
  EXPECT_GT(wide.memory.activations, before.memory.activations);
  const auto plain = with([](auto& o) { o.optimizer = "sgd"; });
  EXPECT_LT(plain.memory.optimizer_state, before.memory.optimizer_state);
  EXPECT_LT(plain.times.optimizer, before.times.optimizer);
  const auto unbalanced = with([](auto& o) { o.expert_imbalance = 2; });
  EXPECT_GT(unbalanced.times.computing, 1.1 * before.times.computing);
  EXPECT_EQ(with([](auto& o) { o.usable_memory = 1e-3; }).binds, "memory");
  LayoutPlanOptions few = options;
  few.num_simulated = 3;
  EXPECT_EQ(plan_layout(mixture(), few).layouts().size(), 3);
  LayoutPlanOptions twice = options;
  twice.batch_tokens *= 2;
  EXPECT_GT(
      plan_layout(mixture(), twice).best().times.step_seconds,
      1.9 * plan_layout(mixture(), options).best().times.step_seconds);
}

TEST(Plan, RefusesWhatMakesNoSense) {
  expect_error<ConfigError>(
      [] { plan_layout({}, options_of(8)); },
      "must be at least 1, but are 0, ");
  LayoutPlanOptions options = options_of(0);
  expect_error<ConfigError>(
      [&] { plan_layout(llama(), options); },
      "a plan cannot be made for 0 ranks");
  options = options_of(8);
  options.tensor = 0;
  expect_error<ConfigError>(
      [&] { plan_layout(llama(), options); }, "degrees and num_simulated");
  options = options_of(6);
  options.tensor = 4;
  expect_error<ConfigError>(
      [&] { plan_layout(llama(), options); }, "no layout of 6 ranks divides");
  options = options_of(8);
  options.optimizer = "magic";
  expect_error<ConfigError>(
      [&] { plan_layout(llama(), options); }, "but is \"magic\"");
  expect_error<ConfigError>(
      [&] { simulate_layout(llama(), {.replicate = 4}, options_of(8)); },
      "the layout has 4 ranks, but there are 8");
  expect_error<ConfigError>(
      [&] {
        simulate_layout(llama(), {.replicate = 8, .expert = 3}, options_of(8));
      },
      "does not divide replicate 8 x shard 1");
  const auto refuses = [](const TrainingLayout& layout, const char* phrase) {
    expect_error<ConfigError>(
        [&] {
          simulate_layout(llama(), layout, options_of(layout.num_ranks()));
        },
        phrase);
  };
  refuses(
      {.tensor = 64, .num_micro_batches = 256},
      "tensor is 64, which does not divide 32 heads, and 32 of keys");
  refuses(
      {.context = 3, .num_micro_batches = 256},
      "context is 3, twice which does not divide a sequence of 4096 tokens");
  refuses(
      {.replicate = 2, .expert = 2, .num_micro_batches = 128},
      "expert is 2, but the model has 0 experts");
  refuses(
      {.replicate = 4, .micro_batch = 3, .num_micro_batches = 8},
      "replicate 4 x shard 1 x micro-batch 3 x 8 are 96 samples, but a step "
      "has 256");
  TransformerShape shape = mixture();
  shape.top_k = 64;
  expect_error<ConfigError>(
      [&] { plan_layout(shape, options_of(8)); },
      "a token must use from 1 to all");
}

}  // namespace layout_test
}  // namespace accelerate
