#include "params/parameter_table.h"

namespace accelerate::detail {
namespace parameter_table_test {

TEST(ParameterTable, HoldsParametersInOrder) {
  const torch::nn::Sequential net(
      torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
  const ParameterTable table(*net);
  ASSERT_EQ(table.rows().size(), 4u);
  EXPECT_EQ(table.rows()[0].name, "0.weight");
  EXPECT_EQ(table.rows()[3].name, "1.bias");
  EXPECT_EQ(table.find("1.weight")->layout, Layout::unsharded({1, 3}));
  EXPECT_EQ(table.find("2.weight"), nullptr);
  EXPECT_EQ(table.find(table.rows()[1].tensor), &table.rows()[1]);
  EXPECT_EQ(table.find(torch::ones({1})), nullptr);
}

TEST(ParameterTable, PutsAPrefixBeforeNames) {
  const torch::nn::Sequential net(torch::nn::Linear(2, 3));
  const ParameterTable table(*net, "stage_1.");
  EXPECT_EQ(table.rows()[0].name, "stage_1.0.weight");
  EXPECT_EQ(table.find("stage_1.0.bias"), &table.rows()[1]);
  EXPECT_EQ(table.find("0.bias"), nullptr);
  EXPECT_EQ(table.name_of("0.running_mean"), "stage_1.0.running_mean");
  EXPECT_EQ(table.key_of("stage_1.0.weight"), "0.weight");
}

TEST(Layout, IsSplitSeveralTimesAlongAnyDimension) {
  Layout layout = Layout::unsharded({10, 8});
  layout.split(Axis::tensor, 1, 3, 4);
  layout.split(Axis::replicate, 0, 5, 5);
  layout.split(Axis::shard, 0, 2, 1);
  EXPECT_EQ(layout.offset, (std::vector<std::int64_t>{7, 3}));
  EXPECT_EQ(layout.extent, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(layout.global_shape, (std::vector<std::int64_t>{10, 8}));
  EXPECT_EQ(
      layout.split_axes,
      (std::vector{Axis::tensor, Axis::replicate, Axis::shard}));
}

TEST(Layout, HasRowsOfSeveralRanges) {
  Layout layout = Layout::unsharded({12, 8});
  layout.split_rows(Axis::tensor, {{0, 2}, {4, 6}, {8, 10}});
  layout.split(Axis::replicate, 1, 4, 4);
  EXPECT_EQ(layout.offset, (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(layout.extent, (std::vector<std::int64_t>{6, 4}));
  const auto box_of = [](const Layout& of) {
    std::vector<std::int64_t> numbers;
    append_box(numbers, of);
    std::span<const std::int64_t> left(numbers);
    EXPECT_EQ(
        take_box(Layout::unsharded({12, 8}), left).row_ranges, of.row_ranges);
    EXPECT_TRUE(left.empty());
    return numbers;
  };
  EXPECT_EQ(
      box_of(layout),
      (std::vector<std::int64_t>{0, 4, 6, 4, 3, 0, 2, 4, 6, 8, 10}));
  // Shards of the layout, with two ranges, one range and none.
  Layout shard = layout;
  shard.split(Axis::shard, 0, 1, 2);
  EXPECT_EQ(
      box_of(shard), (std::vector<std::int64_t>{1, 4, 2, 4, 2, 1, 2, 4, 5}));
  const auto pieces = pieces_of(shard);
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[1].layout.offset, (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(pieces[1].layout.extent, (std::vector<std::int64_t>{1, 4}));
  EXPECT_EQ(pieces[1].first_row, 1);
  EXPECT_EQ(pieces[1].num_rows, 1);
  shard = layout;
  shard.split(Axis::shard, 0, 4, 2);
  EXPECT_EQ(box_of(shard), (std::vector<std::int64_t>{8, 4, 2, 4, 0}));
  shard = layout;
  shard.split(Axis::shard, 0, 6, 0);
  EXPECT_EQ(shard.extent, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(shard.row_ranges.empty());
  // Adjacent ranges are merged.
  shard = Layout::unsharded({12});
  shard.split_rows(Axis::tensor, {{0, 4}, {4, 6}});
  EXPECT_TRUE(shard.row_ranges.empty());
  EXPECT_EQ(shard.extent, (std::vector<std::int64_t>{6}));
}

TEST(ParameterTable, KeepsATiedTensorOnceUnderItsFirstName) {
  struct Tied : torch::nn::Module {
    Tied() {
      const auto shared = torch::ones({2});
      register_parameter("first", shared);
      register_parameter("second", shared, /*requires_grad=*/true);
    }
  };
  const ParameterTable table{Tied()};
  ASSERT_EQ(table.rows().size(), 1u);
  EXPECT_EQ(table.rows()[0].name, "first");
  EXPECT_EQ(table.find("second"), table.find("first"));
}

TEST(ParameterTable, LeavesFrozenRowsOutOfTheTrainable) {
  torch::nn::Linear net(2, 2);
  net->bias.requires_grad_(false);
  const ParameterTable table(*net);
  const auto trainable = table.trainable();
  ASSERT_EQ(trainable.size(), 1u);
  EXPECT_EQ(trainable[0]->name, "weight");
}

}  // namespace parameter_table_test
}  // namespace accelerate::detail
