#include <accelerate/token_collate.h>

#include <numeric>

#include <rapidcheck.h>

#include <accelerate/data_loader.h>
#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate {
namespace token_collate_test {

using testing::expect_error;
using Sample = std::tuple<torch::Tensor>;
using LongSequences = PackCollateOptions::LongSequences;

std::vector<Sample> samples_of(
    const std::vector<std::vector<std::int64_t>>& rows) {
  std::vector<Sample> samples;
  for (const auto& row : rows)
    samples.emplace_back(torch::tensor(row, torch::kLong));
  return samples;
}

void expect_rows(
    const torch::Tensor& tensor,
    const std::vector<std::vector<std::int64_t>>& rows) {
  ASSERT_EQ(tensor.size(0), static_cast<std::int64_t>(rows.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const torch::Tensor row =
        tensor[static_cast<std::int64_t>(i)].to(torch::kLong).contiguous();
    EXPECT_EQ(
        std::vector<std::int64_t>(
            row.data_ptr<std::int64_t>(),
            row.data_ptr<std::int64_t>() + row.numel()),
        rows[i]);
  }
}

TEST(PadCollate, PadsToTheLongest) {
  const PadCollate collate({.pad_token_id = 9});
  const PaddedBatch batch = collate(samples_of({{1, 2, 3}, {4}, {}}));
  expect_rows(batch.input_ids, {{1, 2, 3}, {4, 9, 9}, {9, 9, 9}});
  expect_rows(batch.attention_mask, {{1, 1, 1}, {1, 0, 0}, {0, 0, 0}});
  expect_rows(batch.labels, {{1, 2, 3}, {4, -100, -100}, {-100, -100, -100}});
  EXPECT_TRUE(torch::equal(batch.lengths, torch::tensor({3, 1, 0})));
  EXPECT_EQ(batch.attention_mask.scalar_type(), torch::kBool);
}

TEST(PadCollate, TruncatesRoundsUpAndPadsOnTheLeft) {
  const PadCollate collate(
      {.pad_to_multiple_of = 4, .max_length = 3, .pad_left = true});
  const PaddedBatch batch = collate(samples_of({{1, 2, 3, 4, 5}, {6}}));
  expect_rows(batch.input_ids, {{0, 1, 2, 3}, {0, 0, 0, 6}});
  expect_rows(batch.attention_mask, {{0, 1, 1, 1}, {0, 0, 0, 1}});
  EXPECT_TRUE(torch::equal(batch.lengths, torch::tensor({3, 1})));
}

TEST(PadCollate, TakesLabelsOfTheirOwnAndOtherDtypes) {
  using Labelled = std::pair<torch::Tensor, torch::Tensor>;
  const std::vector<Labelled> samples{
      {torch::tensor({1, 2}, torch::kInt),
       torch::tensor({7, 8}, torch::kShort)},
      {torch::arange(6).slice(0, 0, 6, 2), torch::tensor({-100, 1, 2})}};
  const PaddedBatch batch = PadCollate()(samples);
  expect_rows(batch.input_ids, {{1, 2, 0}, {0, 2, 4}});
  expect_rows(batch.labels, {{7, 8, -100}, {-100, 1, 2}});
}

TEST(PadCollate, RefusesTensorsThatAreNotSequences) {
  const auto refuse = [](const auto& sample, const std::string& phrase) {
    expect_error<ConfigError>(
        [&] { PadCollate()(std::vector{sample}); }, phrase);
  };
  refuse(
      Sample(torch::zeros({2, 2}, torch::kLong)), "a 1-d tensor of integers");
  refuse(Sample(torch::zeros({2})), "a 1-d tensor of integers");
  refuse(Sample(torch::Tensor()), "a 1-d tensor of integers");
  refuse(
      std::pair{torch::arange(2), torch::arange(3)}, "2 tokens and 3 labels");
  refuse(
      std::tuple{torch::arange(2), torch::arange(2), torch::arange(2)},
      "3 tensors");
  expect_error<ConfigError>(
      [] { PadCollate({.pad_to_multiple_of = 0}); },
      "at least 1, but are 0 and 1");
  expect_error<ConfigError>(
      [] { PadCollate({.max_length = 0}); }, "at least 1, but are 1 and 0");
}

TEST(PackCollate, PutsSequencesTogetherInRows) {
  const PackCollate collate({.row_length = 5, .pad_token_id = 9});
  const PackedBatch batch =
      collate(samples_of({{1, 2}, {3, 4, 5, 6}, {7, 8, 10}, {}, {11}}));
  // The longest sequences first, each into the first row with room.
  expect_rows(batch.input_ids, {{3, 4, 5, 6, 11}, {7, 8, 10, 1, 2}});
  expect_rows(batch.position_ids, {{0, 1, 2, 3, 0}, {0, 1, 2, 0, 1}});
  expect_rows(batch.sequence_ids, {{1, 1, 1, 1, 2}, {1, 1, 1, 2, 2}});
  expect_rows(batch.labels, {{-100, 4, 5, 6, -100}, {-100, 8, 10, -100, 2}});
  expect_rows(batch.loss_mask, {{0, 1, 1, 1, 0}, {0, 1, 1, 0, 1}});
  expect_rows(batch.attention_mask, {{1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}});
  EXPECT_TRUE(torch::equal(batch.sequences_in_row, torch::tensor({2, 2})));
  EXPECT_TRUE(torch::equal(batch.tokens_in_row, torch::tensor({5, 5})));
}

TEST(PackCollate, PadsRowsAndKeepsFirstLabels) {
  const PackCollate collate(
      {.row_length = 4,
       .num_rows = 3,
       .pad_token_id = 9,
       .ignore_first_label = false});
  const PackedBatch batch = collate(samples_of({{1, 2, 3}, {4, 5}}));
  expect_rows(batch.input_ids, {{1, 2, 3, 9}, {4, 5, 9, 9}, {9, 9, 9, 9}});
  expect_rows(
      batch.labels,
      {{1, 2, 3, -100}, {4, 5, -100, -100}, {-100, -100, -100, -100}});
  expect_rows(batch.sequence_ids, {{1, 1, 1, 0}, {1, 1, 0, 0}, {0, 0, 0, 0}});
  EXPECT_TRUE(torch::equal(batch.tokens_in_row, torch::tensor({3, 2, 0})));
}

TEST(PackCollate, RefusesCutsOrSplitsLongSequences) {
  const auto samples = samples_of({{1, 2, 3, 4, 5}});
  expect_error<ConfigError>(
      [&] { PackCollate({.row_length = 2})(samples); },
      "has 5 tokens, but a row has 2");
  expect_rows(
      PackCollate({.row_length = 2, .long_sequences = LongSequences::cut})(
          samples)
          .input_ids,
      {{1, 2}});
  expect_rows(
      PackCollate({.row_length = 2, .long_sequences = LongSequences::split})(
          samples)
          .input_ids,
      {{1, 2}, {3, 4}, {5, 0}});
  expect_error<ConfigError>(
      [&] {
        PackCollate(
            {.row_length = 2,
             .num_rows = 2,
             .long_sequences = LongSequences::split})(samples);
      },
      "needs 3 rows of 2 tokens, but num_rows is 2");
  expect_error<ConfigError>(
      [] { PackCollate({.row_length = 0}); }, "at least 1, but are 0 and 1");
}

TEST(PackCollate, LosesNoTokenAndMixesNoSequences) {
  EXPECT_TRUE(rc::check([] {
    const auto width = *rc::gen::inRange<std::int64_t>(1, 12);
    const auto lengths = *rc::gen::container<std::vector<std::int64_t>>(
        rc::gen::inRange<std::int64_t>(0, 30));
    // Token t of sequence s is 100 s + t.
    std::vector<Sample> samples;
    std::int64_t num_tokens = 0;
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      samples.emplace_back(
          torch::arange(lengths[s]) + static_cast<std::int64_t>(100 * s));
      num_tokens += lengths[s];
    }
    const PackedBatch batch = PackCollate(
        {.row_length = width,
         .pad_token_id = -1,
         .long_sequences = LongSequences::split})(samples);
    RC_ASSERT(batch.tokens_in_row.sum().item<std::int64_t>() == num_tokens);
    RC_ASSERT(batch.attention_mask.sum().item<std::int64_t>() == num_tokens);
    const torch::Tensor tokens =
        batch.input_ids.masked_select(batch.attention_mask);
    RC_ASSERT(std::get<0>(at::_unique(tokens)).numel() == num_tokens);
    RC_ASSERT(torch::equal(batch.attention_mask, batch.input_ids.ne(-1)));
    for (std::int64_t row = 0; row < batch.input_ids.size(0); ++row) {
      for (std::int64_t i = 1; i < width; ++i) {
        if (!batch.attention_mask[row][i].item<bool>()) continue;
        const bool continues =
            batch.position_ids[row][i].item<std::int64_t>() > 0;
        const auto here = batch.input_ids[row][i].item<std::int64_t>();
        const auto before = batch.input_ids[row][i - 1].item<std::int64_t>();
        RC_ASSERT(!continues || here == before + 1);
        RC_ASSERT(
            continues ==
            (batch.sequence_ids[row][i].item<std::int64_t>() ==
             batch.sequence_ids[row][i - 1].item<std::int64_t>()));
      }
    }
  }));
}

TEST(PackCollate, MaskKeepsAttentionWithinEachSequence) {
  torch::manual_seed(1);
  const PackedBatch batch =
      PackCollate({.row_length = 6})(samples_of({{1, 2, 3}, {4, 5}}));
  const torch::Tensor mask = block_attention_mask(batch.sequence_ids);
  EXPECT_EQ(mask.sizes(), (std::vector<std::int64_t>{1, 1, 6, 6}));
  const torch::Tensor q = torch::randn({1, 2, 6, 4}),
                      k = torch::randn({1, 2, 6, 4}),
                      v = torch::randn({1, 2, 6, 4});
  const torch::Tensor packed = at::scaled_dot_product_attention(q, k, v, mask);
  EXPECT_FALSE(packed.isnan().any().item<bool>());
  for (const auto& [begin, end] : {std::pair{0, 3}, std::pair{3, 5}}) {
    const torch::Tensor alone = at::scaled_dot_product_attention(
        q.slice(2, begin, end),
        k.slice(2, begin, end),
        v.slice(2, begin, end),
        {},
        0.0,
        /*is_causal=*/true);
    EXPECT_TRUE(
        torch::allclose(packed.slice(2, begin, end), alone, 1e-5, 1e-6));
  }
  EXPECT_TRUE(torch::equal(
      cumulative_lengths(batch.sequence_ids),
      torch::tensor({0, 3, 5, 6}, torch::kInt)));
  const torch::Tensor both =
      block_attention_mask(batch.sequence_ids, false)[0][0];
  EXPECT_TRUE(both[0][2].item<bool>());
  EXPECT_FALSE(both[0][3].item<bool>());
  expect_error<ConfigError>(
      [] { static_cast<void>(block_attention_mask(torch::zeros({3}))); },
      "[rows, length]");
}

TEST(PackCollate, ServesALoader) {
  struct Sequences {
    [[nodiscard]] std::int64_t size() const { return 7; }
    [[nodiscard]] torch::Tensor get(std::int64_t i) const {
      return torch::arange(i + 1);
    }
  };
  DataLoader loader(
      Sequences(),
      {.batch_size = 4, .num_workers = 2},
      PackCollate({.row_length = 8}));
  std::int64_t num_tokens = 0;
  for (const PackedBatch& batch : loader) {
    num_tokens += batch.tokens_in_row.sum().item<std::int64_t>();
  }
  EXPECT_EQ(num_tokens, 28);
}

}  // namespace token_collate_test
}  // namespace accelerate
