// Attention by exchanging heads equals attention in one process.
#include <accelerate/attention.h>

#include <rapidcheck.h>

#include <accelerate/error.h>

#include "comm/autograd/all_to_all.h"
#include "parallel/attention_problem.h"
#include "parallel/context/head_shares.h"
#include "support/expect_error.h"

namespace accelerate {
namespace ulysses_attention_test {

using namespace attention_problem;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::run_in_worlds;

TEST(HeadShares, GiveEachRankItsQueriesAndTheKeysThatServeThem) {
  const auto shares = detail::divide_heads(6, 2, 4);
  std::vector<std::int64_t> firsts, counts, first_keys, key_counts;
  for (const detail::HeadShare& share : shares) {
    firsts.push_back(share.first);
    counts.push_back(share.count);
    first_keys.push_back(share.first_key);
    key_counts.push_back(share.key_count);
  }
  EXPECT_THAT(firsts, ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(counts, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(first_keys, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(key_counts, ElementsAre(1, 2, 1, 1));
  EXPECT_THAT(shares[1].key_of_each(3), ElementsAre(0, 1));
  EXPECT_FALSE(shares[1].has_whole_groups(3));
  EXPECT_TRUE(detail::divide_heads(6, 2, 2)[1].has_whole_groups(3));
}

TEST(AllToAll, TakesTheWayBackInBackward) {
  run_in_worlds(3, [](const World& world) {
    const int rank = world.rank();
    // Rank r has r + 1 rows, and gives away 1, 2 and 0 columns of 3.
    const at::Tensor input =
        (at::arange((rank + 1) * 3, at::kDouble) + 10 * rank)
            .view({rank + 1, 3})
            .requires_grad_(true);
    const at::Tensor output = detail::all_to_all_autograd(
        input, {world.group()}, {1, {1, 2, 0}, 0, {1, 2, 3}});
    const std::vector<std::int64_t> columns{1, 2, 0};
    EXPECT_THAT(
        output.sizes().vec(),
        ElementsAre(6, columns[static_cast<std::size_t>(rank)]));
    if (rank == 0) {
      EXPECT_TRUE(at::equal(
          output.flatten().detach(),
          at::tensor({0., 10., 13., 20., 23., 26.}, at::kDouble)));
    }
    // Twice the received values go back to where they came from.
    output.backward(2 * output.detach());
    EXPECT_TRUE(at::equal(input.grad(), 2 * input.detach()));
    expect_error<ConfigError>(
        [&] {
          detail::all_to_all_autograd(
              input, {world.group()}, {1, {1, 1, 0}, 0, {1, 2, 3}});
        },
        "must add up");
  });
}

TEST(Ulysses, EqualsOneProcessForAnyShape) {
  EXPECT_TRUE(rc::check([] {
    Problem problem;
    const int ranks = *rc::gen::inRange(1, 5);
    problem.length = *rc::gen::inRange<std::int64_t>(1, 30);
    problem.batch = *rc::gen::inRange<std::int64_t>(1, 3);
    problem.key_heads = *rc::gen::inRange<std::int64_t>(1, 6);
    const auto group = *rc::gen::inRange<std::int64_t>(
        (ranks + problem.key_heads - 1) / problem.key_heads, 5);
    problem.heads = problem.key_heads * group;
    problem.cut =
        *rc::gen::element(SequenceCut::contiguous, SequenceCut::zigzag);
    problem.options.enable_gqa = group > 1;
    problem.options.is_causal = *rc::gen::arbitrary<bool>();
    expect_same_as_one_process(problem, ranks, kExact, &ulysses_attention);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(Ulysses, TakesMasksOfEachHead) {
  Problem problem{.length = 10, .heads = 3, .key_heads = 3};
  auto generator = at::detail::createCPUGenerator(3);
  problem.options.attn_mask = at::randn({1, 3, 10, 10}, generator, at::kDouble);
  expect_same_as_one_process(problem, 2, kExact, &ulysses_attention);
  problem.options.attn_mask.reset();
  problem.options.is_causal = true;
  problem.options.document_ids =
      at::tensor({0, 0, 0, 1, 1, 1, 1, 2, 2, 2}, at::kLong).view({1, 10});
  expect_same_as_one_process(problem, 3, kExact, &ulysses_attention);
}

TEST(Ulysses, LeavesOutPaddedKeys) {
  Problem problem{.length = 10, .heads = 3, .key_heads = 3};
  problem.options.key_padding_mask =
      at::arange(10).expand({2, 10}).ge(at::tensor({7, 10}).unsqueeze(1));
  for (const bool is_causal : {false, true}) {
    problem.options.is_causal = is_causal;
    expect_same_as_one_process(problem, 2, kExact, &ulysses_attention);
  }
}

TEST(Ulysses, DropsTheWeightsThatTheRingDrops) {
  Problem problem{.length = 12, .heads = 4, .key_heads = 2};
  problem.options = {.dropout_p = 0.4, .dropout_seed = 3, .enable_gqa = true};
  const Sequence whole = sequence_of(problem);
  const at::Tensor expected = ring_attention(
      whole.inputs[0],
      whole.inputs[1],
      whole.inputs[2],
      Group(),
      SequenceShards(12, 1),
      problem.options);
  run_in_worlds(3, [&](const World& world) {
    const SequenceShards shards(12, 3);
    const auto part = [&](const at::Tensor& tensor) {
      return local(tensor, shards, world.rank());
    };
    expect_close(
        ulysses_attention(
            part(whole.inputs[0]),
            part(whole.inputs[1]),
            part(whole.inputs[2]),
            world.group(),
            shards,
            problem.options),
        part(expected),
        kExact,
        "output");
  });
}

TEST(Ulysses, DropsTheWeightsOfOneProcessWhereRanksHaveSomeHeads) {
  Problem problem{.length = 12, .heads = 6, .key_heads = 6};
  problem.options = {.dropout_p = 0.4, .dropout_seed = 3};
  const Sequence whole = sequence_of(problem);
  const at::Tensor expected = ring_attention(
      whole.inputs[0],
      whole.inputs[1],
      whole.inputs[2],
      Group(),
      SequenceShards(12, 1),
      problem.options);
  for (const auto attention : {&ring_attention, &ulysses_attention}) {
    run_in_worlds(2, [&](const World& world) {
      const SequenceShards shards(12, 2);
      // The heads of two tensor-parallel ranks.
      for (const auto& [first, count] : {std::pair{0, 4}, std::pair{4, 2}}) {
        SequenceAttentionOptions options = problem.options;
        options.first_head = first;
        const auto part = [&, begin = first, heads = count](
                              const at::Tensor& tensor) {
          return local(tensor, shards, world.rank()).narrow(1, begin, heads);
        };
        expect_close(
            attention(
                part(whole.inputs[0]),
                part(whole.inputs[1]),
                part(whole.inputs[2]),
                world.group(),
                shards,
                options),
            part(expected),
            kExact,
            "output");
      }
    });
  }
}

TEST(Ulysses, NeedsAHeadForEachRank) {
  run_in_worlds(3, [](const World& world) {
    const at::Tensor ones = at::ones({1, 2, 4, 8});
    expect_error<ConfigError>(
        [&] {
          ulysses_attention(
              ones, ones, ones, world.group(), SequenceShards(12, 3));
        },
        "2 heads, which cannot be divided among 3 ranks");
    expect_error<ConfigError>(
        [&] {
          ulysses_attention(
              ones[0], ones[0], ones[0], world.group(), SequenceShards(12, 3));
        },
        "tensors must have 4 dimensions");
  });
}

}  // namespace ulysses_attention_test
}  // namespace accelerate
