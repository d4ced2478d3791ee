// Lists, numbers and strings beside the tensors of nested values.
#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace nested_lists_test {

using testing::expect_error;
using testing::run_in_worlds;

using Texts = std::vector<std::string>;
using Batch = std::tuple<
    torch::Tensor,
    Texts,
    std::map<std::string, std::vector<double>>,
    double>;

Batch batch_of(std::int64_t first, std::int64_t rows) {
  Batch batch;
  auto& [x, texts, scores, scale] = batch;
  x = torch::arange(first, first + rows);
  for (std::int64_t i = first; i < first + rows; ++i) {
    texts.push_back(std::to_string(i));
    scores["a"].push_back(static_cast<double>(i) / 2);
  }
  scale = 0.5;
  return batch;
}

void expect_batch(const Batch& batch, const Batch& expected) {
  EXPECT_TRUE(torch::equal(std::get<0>(batch), std::get<0>(expected)));
  EXPECT_EQ(std::get<1>(batch), std::get<1>(expected));
  EXPECT_EQ(std::get<2>(batch), std::get<2>(expected));
  EXPECT_EQ(std::get<3>(batch), std::get<3>(expected));
}

TEST(NestedLists, AreCutWithTheTensors) {
  expect_batch(slice_tensors(batch_of(0, 5), 1, 3), batch_of(1, 2));
  expect_batch(slice_tensors(batch_of(0, 5), 3, 9), batch_of(3, 2));
  expect_batch(slice_tensors(batch_of(0, 5), -2, 5), batch_of(3, 2));
  EXPECT_TRUE(std::get<1>(slice_tensors(batch_of(0, 5), 4, 2)).empty());
  const std::pair<torch::Tensor, Texts> names{
      torch::ones({4, 2}), {"cat", "dog"}};
  expect_error<ConfigError>(
      [&] { slice_tensors(names, 0, 2); },
      "[nested] slice_tensors takes values whose tensors and lists all have "
      "one row per sample, but beside 4 rows there is a list of 2 items at "
      "[1]");
  const std::pair<torch::Tensor, torch::Tensor> with_none{
      torch::ones({4}), torch::Tensor()};
  EXPECT_FALSE(slice_tensors(with_none, 0, 2).second.defined());
  expect_error<ConfigError>(
      [] {
        slice_tensors(std::array{torch::ones({4}), torch::ones({})}, 0, 1);
      },
      "one has none at [1]");
}

TEST(NestedLists, AreJoinedWithTheTensors) {
  expect_batch(
      concatenate<Batch>({batch_of(0, 2), batch_of(2, 1), batch_of(3, 2)}),
      batch_of(0, 5));
  Batch other = batch_of(2, 1);
  std::get<3>(other) = 0.1;
  expect_error<ConfigError>(
      [&] { concatenate<Batch>({batch_of(0, 2), other}); },
      "the values passed to concatenate differ at [3]: 0.5 and 0.1");
  other = batch_of(2, 1);
  std::get<1>(other).clear();
  expect_error<ConfigError>(
      [&] { concatenate<Batch>({batch_of(0, 2), other}); },
      "beside 1 rows there is a list of 0 items at [1]");
  other = batch_of(2, 1);
  std::get<2>(other)["b"] = {1};
  expect_error<ConfigError>(
      [&] { concatenate<Batch>({batch_of(0, 2), other}); },
      "values of different structure");
  using Wide = std::pair<torch::Tensor, Texts>;
  const Wide left{torch::ones({2, 1}), {"a", "b"}};
  const Wide right{torch::ones({2, 1}), {"a", "c"}};
  EXPECT_EQ(concatenate<Wide>({left, left}, 1).second, left.second);
  expect_error<ConfigError>(
      [&] { concatenate<Wide>({left, right}, 1); },
      "differ at [1]: a list of 2 items and a list of 2 items");
}

TEST(NestedLists, AreCutAndJoinedWithoutTensorsThatHaveRows) {
  using Words = std::tuple<std::optional<torch::Tensor>, Texts, Texts>;
  const Words words{std::nullopt, {"a", "b", "c"}, {"d", "e", "f"}};
  const Words cut = slice_tensors(words, 1, 3);
  EXPECT_EQ(std::get<1>(cut), (Texts{"b", "c"}));
  EXPECT_EQ(std::get<2>(cut), (Texts{"e", "f"}));
  const Words joined = concatenate<Words>({cut, words});
  EXPECT_EQ(std::get<1>(joined), (Texts{"b", "c", "a", "b", "c"}));
  EXPECT_EQ(std::get<2>(joined), (Texts{"e", "f", "d", "e", "f"}));
  const Words uneven{std::nullopt, {"a", "b"}, {"c"}};
  expect_error<ConfigError>(
      [&] { slice_tensors(uneven, 0, 1); },
      "beside 2 rows there is a list of 1 items at [2]");
}

TEST(NestedLists, ArePaddedWithTheTensors) {
  const Batch padded = pad_input_tensors(batch_of(1, 3), 3, 2);
  EXPECT_TRUE(torch::equal(std::get<0>(padded), torch::tensor({1, 2, 3, 0})));
  EXPECT_EQ(std::get<1>(padded), (Texts{"1", "2", "3", ""}));
  EXPECT_EQ(std::get<2>(padded).at("a"), (std::vector<double>{0.5, 1, 1.5, 0}));
}

TEST(NestedLists, AreGatheredWithTheTensors) {
  run_in_worlds(3, [](const World& world) {
    // Ranks have 1, 2 and 3 rows.
    const std::array<std::int64_t, 3> first{0, 1, 3};
    const auto rank = static_cast<std::size_t>(world.rank());
    const Batch mine = batch_of(first[rank], world.rank() + 1);
    expect_batch(gather(mine, world.group()), batch_of(0, 6));
    using Flags = std::pair<torch::Tensor, std::vector<bool>>;
    const Flags flags{torch::ones({1}), {rank == 1}};
    EXPECT_EQ(
        gather(flags, world.group()).second,
        (std::vector<bool>{false, true, false}));
  });
}

TEST(NestedLists, AreBroadcastWithTheTensors) {
  run_in_worlds(3, [](const World& world) {
    Batch mine = batch_of(world.rank(), 2);
    std::get<3>(mine) = world.rank();
    Batch expected = batch_of(1, 2);
    std::get<3>(expected) = 1;
    expect_batch(broadcast(mine, world.group(), 1), expected);
  });
}

// Calls `body` on three ranks, each of which must throw and be able to
// continue.
void expect_refusal(
    const std::function<void(int rank, const Group&)>& body,
    const std::string& text) {
  run_in_worlds(3, [&](const World& world) {
    expect_error<DistributedError>(
        [&] { body(world.rank(), world.group()); }, text);
    EXPECT_EQ(
        reduce(torch::ones({1}), world.group(), ReduceOp::sum).item<float>(),
        world.size());
  });
}

TEST(NestedLists, AreRefusedOnAllRanksWhereTheyCannotBeJoined) {
  using Number = std::pair<torch::Tensor, double>;
  expect_refusal(
      [](int rank, const Group& group) {
        gather(Number{torch::ones({1}), 0.1 * rank}, group);
      },
      "rank 1: Float [rows], 0.1 at [1]\n  rank 2: Float [rows], 0.2 at [1]");
  expect_refusal(
      [](int rank, const Group& group) {
        reduce(Number{torch::ones({1}), rank}, group, ReduceOp::sum);
      },
      "rank 2: sum of Float [1], 2 at [1]");
  using List = std::pair<torch::Tensor, Texts>;
  expect_refusal(
      [](int rank, const Group& group) {
        reduce(
            List{torch::ones({1}), {std::to_string(rank)}},
            group,
            ReduceOp::sum);
      },
      "rank 0: sum of Float [1], list at [1] of 1 items with hash");
  expect_refusal(
      [](int rank, const Group& group) {
        const auto size = static_cast<std::size_t>(rank);
        pad_across_processes(List{torch::ones({1}), Texts(size)}, group);
      },
      "rank 2: 1 dimensions, list at [1] of 2 items");
  using Named = std::map<std::string, torch::Tensor>;
  expect_refusal(
      [](int rank, const Group& group) {
        gather(Named{{rank == 1 ? "b" : "a", torch::ones({1})}}, group);
      },
      "rank 1: Float [rows] at [\"b\"]");
  expect_refusal(
      [](int rank, const Group& group) {
        torch::Tensor mine = torch::ones({2});
        gather(rank == 1 ? mine.to_sparse() : mine, group);
      },
      "rank 1: Float [rows] Sparse");
}

TEST(PadAcrossProcesses, RefusesAValueThatADtypeLacksOnAllRanks) {
  struct Value {
    at::ScalarType dtype;
    double pad_index;
    bool is_held;
  };
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<Value> values{
      {at::kByte, -1, false},
      {at::kByte, 255, true},
      {at::kByte, 256, false},
      {at::kChar, -128, true},
      {at::kLong, 0.5, false},
      {at::kLong, std::nan(""), false},
      {at::kLong, 1e19, false},
      {at::kLong, -100, true},
      {at::kBool, 2, false},
      {at::kBool, 1, true},
      {at::kHalf, 1e6, false},
      {at::kHalf, kInfinity, true},
      {at::kFloat, 0.5, true}};
  run_in_worlds(2, [&](const World& world) {
    for (const auto& [dtype, pad_index, is_held] : values) {
      // Rank 1 alone pads.
      const auto mine = torch::ones({2 - world.rank()}, dtype);
      if (is_held) {
        const auto padded =
            pad_across_processes(mine, world.group(), 0, pad_index);
        EXPECT_EQ(padded[1].item<double>(), world.rank() == 0 ? 1 : pad_index);
      } else {
        expect_error<ConfigError>(
            [&, index = pad_index] {
              pad_across_processes(mine, world.group(), 0, index);
            },
            "[nested] pad_index must be a value of the tensors");
      }
    }
    expect_error<DistributedError>(
        [&] {
          const auto dtype = world.rank() == 0 ? at::kByte : at::kFloat;
          pad_across_processes(
              torch::ones({1 + world.rank()}, dtype), world.group(), 0, -1);
        },
        "rank 0: 1 dimensions with -1 in Byte");
  });
}

TEST(VisitTensors, ReachesVariantsAndListsOfEveryKind) {
  using Either = std::variant<std::monostate, torch::Tensor, Texts>;
  std::vector<Either> values{
      Either(torch::ones({2})), Either(), Either(Texts{"a"})};
  visit_tensors(values, [](torch::Tensor& tensor) { tensor = tensor * 2; });
  EXPECT_EQ(std::get<1>(values[0]).sum().item<double>(), 4);
  const std::pair<torch::Tensor, std::vector<bool>> flags{
      torch::ones({1}), {true}};
  expect_error<ConfigError>(
      [&] {
        recursively_apply(
            [](const at::Tensor& tensor) { return tensor; },
            flags,
            {.error_on_other_type = true});
      },
      "found a number");
}

}  // namespace nested_lists_test
}  // namespace accelerate
