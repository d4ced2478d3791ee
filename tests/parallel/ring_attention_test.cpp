// Attention over divided sequences equals attention in one process.
#include <accelerate/attention.h>

#include <rapidcheck.h>

#include <accelerate/error.h>

#include "parallel/attention_problem.h"
#include "parallel/context/dropout_mask.h"
#include "parallel/context/sequence_tensors.h"
#include "parallel/context/visible_tiles.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace ring_attention_test {

using namespace attention_problem;

using detail::local_positions;
using detail::visible_tiles;
using detail::VisibleTile;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::IsEmpty;
using testing::run_in_worlds;

TEST(VisibleTiles, CausalZigzagComputesNothingInvisible) {
  const SequenceShards shards(12, 3);
  EXPECT_THAT(
      visible_tiles(shards, 1, 1, true),
      ElementsAre(VisibleTile{0, 4, 4, true}));
  EXPECT_THAT(
      visible_tiles(shards, 1, 0, true),
      ElementsAre(VisibleTile{0, 4, 2, false}));
  EXPECT_THAT(
      visible_tiles(shards, 1, 2, true),
      ElementsAre(VisibleTile{2, 2, 4, false}));
  const SequenceShards contiguous(12, 3, SequenceCut::contiguous);
  EXPECT_THAT(visible_tiles(contiguous, 0, 1, true), IsEmpty());
  EXPECT_THAT(
      visible_tiles(contiguous, 1, 0, true),
      ElementsAre(VisibleTile{0, 4, 4, false}));
}

TEST(VisibleTiles, LeavePaddingOut) {
  const SequenceShards shards(5, 2);  // 0 1 6 7 and 2 3 4 5
  EXPECT_THAT(
      visible_tiles(shards, 1, 0, false),
      ElementsAre(VisibleTile{0, 4, 2, false}));
  EXPECT_THAT(
      visible_tiles(shards, 1, 1, true),
      ElementsAre(VisibleTile{0, 4, 3, true}));
  EXPECT_THAT(visible_tiles(SequenceShards(1, 2), 0, 1, false), IsEmpty());
}

TEST(VisibleTiles, CoverEachVisiblePairOnce) {
  EXPECT_TRUE(rc::check([] {
    const auto length = *rc::gen::inRange<std::int64_t>(1, 40);
    const int ranks = *rc::gen::inRange(1, 6);
    const bool is_causal = *rc::gen::arbitrary<bool>();
    const SequenceShards shards(
        length,
        ranks,
        *rc::gen::element(SequenceCut::contiguous, SequenceCut::zigzag));
    for (int q = 0; q < ranks; ++q) {
      for (int k = 0; k < ranks; ++k) {
        const auto queries = shards.positions(q), keys = shards.positions(k);
        std::vector<std::vector<int>> found(
            queries.size(), std::vector<int>(keys.size()));
        for (const VisibleTile& tile : visible_tiles(shards, q, k, is_causal)) {
          for (std::int64_t i = 0; i < tile.num_queries; ++i) {
            for (std::int64_t j = 0; j < tile.num_keys; ++j) {
              if (!tile.is_causal || j <= i)
                ++found[static_cast<std::size_t>(tile.first_query + i)]
                       [static_cast<std::size_t>(j)];
            }
          }
        }
        for (std::size_t i = 0; i < queries.size(); ++i) {
          for (std::size_t j = 0; j < keys.size(); ++j) {
            const bool is_visible =
                keys[j] < length && (!is_causal || keys[j] <= queries[i]);
            RC_ASSERT(found[i][j] == (is_visible ? 1 : 0));
          }
        }
      }
    }
  }));
}

TEST(RingAttention, EqualsOneProcess) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const bool is_causal : {false, true}) {
      for (const SequenceCut cut :
           {SequenceCut::contiguous, SequenceCut::zigzag}) {
        for (const KeyValueRotation rotation :
             {KeyValueRotation::allgather, KeyValueRotation::alltoall}) {
          Problem problem{.length = 24, .cut = cut};
          problem.options = {.is_causal = is_causal, .rotation = rotation};
          SCOPED_TRACE(ranks);
          expect_same_as_one_process(problem, ranks, kExact);
        }
      }
    }
  }
}

TEST(RingAttention, EqualsOneProcessForAnyShape) {
  EXPECT_TRUE(rc::check([] {
    Problem problem;
    const int ranks = *rc::gen::inRange(1, 5);
    problem.length = *rc::gen::inRange<std::int64_t>(1, 40);
    problem.batch = *rc::gen::inRange<std::int64_t>(1, 3);
    problem.key_heads = *rc::gen::inRange<std::int64_t>(1, 4);
    const auto group = *rc::gen::inRange<std::int64_t>(1, 4);
    problem.heads = problem.key_heads * group;
    problem.size = *rc::gen::inRange<std::int64_t>(1, 9);
    problem.value_size =
        *rc::gen::element(problem.size, std::int64_t{3}, std::int64_t{8});
    problem.cut =
        *rc::gen::element(SequenceCut::contiguous, SequenceCut::zigzag);
    problem.options.enable_gqa = group > 1;
    problem.options.is_causal = *rc::gen::arbitrary<bool>();
    problem.options.rotation = *rc::gen::element(
        KeyValueRotation::allgather, KeyValueRotation::alltoall);
    if (*rc::gen::arbitrary<bool>()) problem.options.scale = 0.3;
    expect_same_as_one_process(problem, ranks, kExact);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

// Kernels expect the elements of a head to be contiguous; gradients of sums
// have strides of 0.
TEST(RingAttention, TakesAnyStrides) {
  Problem problem{.length = 12, .size = 8, .value_size = 8};
  const Sequence whole = sequence_of(problem);
  const at::Tensor grad = at::ones({}, at::kDouble).expand_as(whole.inputs[2]);
  const auto expected =
      results_of(whole.inputs, grad.contiguous(), [&](const auto& inputs) {
        return at::scaled_dot_product_attention(
            inputs[0], inputs[1], inputs[2]);
      });
  run_in_worlds(2, [&](const World& world) {
    const SequenceShards shards(problem.length, 2);
    std::vector<at::Tensor> inputs;
    for (const at::Tensor& input : whole.inputs)
      inputs.push_back(local(input, shards, world.rank()));
    const auto found = results_of(
        inputs,
        at::ones({}, at::kDouble).expand_as(inputs[2]),
        [&](const auto& leaves) {
          std::vector<at::Tensor> strided;
          for (const at::Tensor& leaf : leaves) {
            strided.push_back(
                leaf.transpose(-1, -2).contiguous().transpose(-1, -2));
          }
          return ring_attention(
              strided[0], strided[1], strided[2], world.group(), shards);
        });
    for (std::size_t i = 0; i < found.size(); ++i) {
      expect_close(
          found[i],
          local(expected[i], shards, world.rank()),
          kExact,
          std::to_string(i));
    }
  });
}

TEST(RingAttention, TakesMasks) {
  const std::int64_t length = 10;  // 12 with padding
  auto generator = at::detail::createCPUGenerator(3);
  const at::Tensor bias =
      at::randn({1, 2, length, length}, generator, at::kDouble);
  const at::Tensor keys = at::ones({2, 1, 1, length}, at::kBool);
  keys.narrow(3, 7, 3).select(0, 1).fill_(false);
  const at::Tensor matrix = bias.select(1, 0).select(0, 0) > -0.5;
  // Position 4 attends to nothing, and its output is 0.
  matrix.select(0, 4).fill_(false);
  for (const at::Tensor& mask : {bias, keys, matrix}) {
    Problem problem{.length = length};
    problem.options.attn_mask = mask;
    for (const auto rotation :
         {KeyValueRotation::allgather, KeyValueRotation::alltoall}) {
      problem.options.rotation = rotation;
      expect_same_as_one_process(problem, 3, kExact);
    }
  }
}

TEST(RingAttention, TakesMasksOfThisRanksQueries) {
  Problem problem{.length = 8};
  const at::Tensor bias = at::arange(64, at::kDouble).view({8, 8}).div(40);
  problem.options.attn_mask = bias;
  const Sequence whole = sequence_of(problem);
  const at::Tensor expected = on_one_process(problem)[0];
  run_in_worlds(2, [&](const World& world) {
    const SequenceShards shards(8, 2);
    SequenceAttentionOptions options;
    options.attn_mask = local_positions(bias, 0, shards, world.rank(), 0);
    const auto part = [&](const at::Tensor& tensor) {
      return local(tensor, shards, world.rank());
    };
    expect_close(
        ring_attention(
            part(whole.inputs[0]),
            part(whole.inputs[1]),
            part(whole.inputs[2]),
            world.group(),
            shards,
            options),
        part(expected),
        kExact,
        "output");
  });
}

TEST(RingAttention, KeepsPackedDocumentsApart) {
  for (const bool is_causal : {false, true}) {
    Problem problem{.length = 11};
    problem.options.is_causal = is_causal;
    problem.options.document_ids =
        at::tensor(
            {0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 0, 0, 0, 0, 0, 0, 0, 5, 5, 5, 5},
            at::kLong)
            .view({2, 11});
    for (const int ranks : {1, 2, 3})
      expect_same_as_one_process(problem, ranks, kExact);
  }
}

at::Tensor padding_of(std::int64_t length) {
  return at::arange(length)
      .expand({2, length})
      .ge(at::tensor({length - 3, length}).unsqueeze(1));
}

// Together with any other mask.
TEST(RingAttention, LeavesOutPaddedKeys) {
  for (const int ranks : {1, 2, 3}) {
    Problem problem{.length = 11};
    problem.options.key_padding_mask = padding_of(11);
    expect_same_as_one_process(problem, ranks, kExact);
    problem.options.is_causal = true;
    expect_same_as_one_process(problem, ranks, kExact);
    problem.options.document_ids = at::arange(11).div(7, "floor").view({1, 11});
    expect_same_as_one_process(problem, ranks, kExact);
    problem.options = {};
    problem.options.key_padding_mask = padding_of(11);
    problem.options.attn_mask =
        at::sin(at::arange(11 * 11, at::kDouble)).view({11, 11});
    expect_same_as_one_process(problem, ranks, kExact);
  }
}

// The output of queries without keys is 0, and so are their gradients.
TEST(RingAttention, ReturnsZeroWhereNothingIsAttendedTo) {
  const Problem problem{.length = 8};
  const Sequence whole = sequence_of(problem);
  const std::vector<at::Tensor> found = results_of(
      whole.inputs, whole.grad, [](const std::vector<at::Tensor>& inputs) {
        SequenceAttentionOptions options;
        options.key_padding_mask =
            at::arange(2).eq(0).unsqueeze(1).expand({2, 8});
        return ring_attention(
            inputs[0],
            inputs[1],
            inputs[2],
            Group(),
            SequenceShards(8, 1),
            options);
      });
  for (const at::Tensor& each : found) {
    EXPECT_EQ(each[0].abs().max().item<double>(), 0);
    EXPECT_GT(each[1].abs().max().item<double>(), 0);
  }
}

TEST(RingAttention, IsExactInLowPrecision) {
  for (const auto& [dtype, tolerance] :
       {std::pair(at::kFloat, 2e-6), std::pair(at::kBFloat16, 3e-2)}) {
    Problem problem{.length = 32, .size = 16, .value_size = 16, .dtype = dtype};
    problem.options.is_causal = true;
    expect_same_as_one_process(problem, 4, tolerance);
  }
}

/// softmax(q k^T) with the mask's factors, times v.
at::Tensor with_dropout(
    const std::vector<at::Tensor>& inputs,
    const detail::DropoutMask& dropout) {
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < inputs[0].size(2); ++i) positions.push_back(i);
  const at::Tensor scores = at::matmul(inputs[0], inputs[1].transpose(-2, -1))
                                .div(std::sqrt(inputs[0].size(3)));
  return at::matmul(
      at::softmax(scores, -1) * dropout.factors(positions, positions),
      inputs[2]);
}

TEST(RingAttention, DropsTheSameWeightsOnAnyNumberOfRanks) {
  Problem problem{.length = 14, .dtype = at::kDouble};
  problem.options.dropout_p = 0.3;
  problem.options.dropout_seed = 11;
  const Sequence whole = sequence_of(problem);
  const auto expected =
      results_of(whole.inputs, whole.grad, [&](const auto& inputs) {
        return with_dropout(inputs, {0.3, 11, problem.batch, problem.heads});
      });
  for (const int ranks : {1, 2, 3}) {
    run_in_worlds(ranks, [&](const World& world) {
      const SequenceShards shards(problem.length, ranks);
      std::vector<at::Tensor> inputs;
      for (const at::Tensor& input : whole.inputs)
        inputs.push_back(local(input, shards, world.rank()));
      const auto found = results_of(
          inputs,
          local(whole.grad, shards, world.rank(), 0),
          [&](const auto& leaves) {
            return ring_attention(
                leaves[0],
                leaves[1],
                leaves[2],
                world.group(),
                shards,
                problem.options);
          });
      std::int64_t real = 0;
      for (const std::int64_t position : shards.positions(world.rank()))
        real += position < problem.length ? 1 : 0;
      for (std::size_t i = 0; i < found.size(); ++i) {
        // The factors are floats.
        expect_close(
            found[i].narrow(2, 0, real),
            local(expected[i], shards, world.rank()).narrow(2, 0, real),
            1e-6,
            std::to_string(i));
      }
    });
  }
}

TEST(DropoutMask, DropsItsShareOfWeights) {
  std::vector<std::int64_t> positions(200);
  for (std::size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<std::int64_t>(i);
  const detail::DropoutMask mask{0.25, 5, 2, 3};
  const at::Tensor factors = mask.factors(positions, positions);
  EXPECT_THAT(factors.sizes().vec(), ElementsAre(2, 3, 200, 200));
  const at::Tensor dropped = factors.eq(0).to(at::kFloat);
  EXPECT_NEAR(dropped.mean().item<double>(), 0.25, 0.005);
  // Rows, columns and heads have different masks.
  EXPECT_LT(dropped.mean(at::IntArrayRef({2})).max().item<double>(), 0.45);
  EXPECT_LT(dropped.mean(at::IntArrayRef({3})).max().item<double>(), 0.45);
  EXPECT_LT(dropped.mean(at::IntArrayRef({0, 1})).eq(1).sum().item<int>(), 60);
  EXPECT_NEAR(factors.max().item<double>(), 1 / 0.75, 1e-6);
  // The mask of some positions is the same part of the full mask.
  const std::vector<std::int64_t> some{3, 150};
  EXPECT_TRUE(at::equal(
      mask.factors(some, positions).select(2, 1), factors.select(2, 150)));
}

TEST(RingAttention, DrawsASeedThatAllRanksShare) {
  run_in_worlds(3, [&](const World& world) {
    const std::uint64_t seed =
        detail::dropout_seed({.dropout_p = 0.5}, world.group());
    const auto seeds = world.group().all_gather_bytes(std::to_string(seed));
    EXPECT_THAT(seeds, ::testing::Each(std::to_string(seed)));
    EXPECT_EQ(detail::dropout_seed({}, world.group()), 0U);
  });
}

TEST(RingAttention, RefusesWhatDoesNotFit) {
  const at::Tensor ones = at::ones({1, 2, 4, 8});
  const SequenceShards shards(4, 1);
  const auto refuse = [&](const at::Tensor& query,
                          const at::Tensor& key,
                          const SequenceAttentionOptions& options,
                          const std::string& phrase) {
    expect_error<ConfigError>(
        [&] { ring_attention(query, key, key, Group(), shards, options); },
        phrase);
  };
  refuse(ones, ones.narrow(2, 0, 3), {}, "sizes must agree");
  refuse(ones, ones.to(at::kDouble), {}, "have the same floating dtype");
  refuse(ones, ones.narrow(1, 0, 1), {}, "set enable_gqa");
  refuse(
      ones.narrow(1, 0, 1), ones, {.enable_gqa = true}, "must be a multiple");
  refuse(
      ones,
      ones,
      {.is_causal = true, .attn_mask = at::ones({4, 4}, at::kBool)},
      "exclude each other");
  refuse(
      ones,
      ones,
      {.attn_mask = at::ones({4, 4}).requires_grad_(true)},
      "requires a gradient");
  refuse(ones, ones, {.attn_mask = at::ones({4, 5})}, "attn_mask is 4 x 5");
  refuse(ones, ones, {.dropout_p = 1.5}, "from 0 to 1");
  refuse(
      ones,
      ones,
      {.document_ids = at::ones({4})},
      "document_ids are 4 of Float");
  const at::Tensor longer = at::ones({1, 2, 5, 8});
  refuse(longer, longer, {}, "got 5 positions");
  refuse(at::ones({1, 1, 1, 4, 8}), at::ones({1, 1, 1, 4, 8}), {}, "but got 5");
  expect_error<ConfigError>(
      [&] { ring_attention(ones, ones, ones, Group(), SequenceShards(8, 2)); },
      "divided among 2 ranks");
}

TEST(RingAttention, HasNoSecondGradient) {
  const at::Tensor ones = at::ones({1, 1, 4, 8}).requires_grad_(true);
  const at::Tensor output =
      ring_attention(ones, ones, ones, Group(), SequenceShards(4, 1));
  expect_error<Error>(
      [&] {
        torch::autograd::grad(
            {output.sum()}, {ones}, {}, std::nullopt, /*create_graph=*/true);
      },
      "leave out create_graph");
}

}  // namespace ring_attention_test
}  // namespace accelerate
