#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace nested_structure_test {

using testing::expect_error;
using testing::run_in_worlds;

using Batch = std::map<std::string, std::vector<at::Tensor>>;

TEST(RecursivelyApply, ReplacesTensorsAndKeepsTypes) {
  const std::tuple<at::Tensor, int, std::optional<at::Tensor>> value{
      torch::ones({2}), 5, std::nullopt};
  const auto doubled = recursively_apply(
      [](const at::Tensor& tensor) { return tensor * 2; }, value);
  static_assert(std::is_same_v<decltype(doubled), decltype(value)>);
  EXPECT_TRUE(torch::equal(std::get<0>(doubled), torch::full({2}, 2.0)));
  EXPECT_EQ(std::get<1>(doubled), 5);
  EXPECT_EQ(std::get<0>(value).sum().item<double>(), 2);
}

TEST(RecursivelyApply, LeavesOrRefusesWhatItsTestRefuses) {
  const auto is_integer = [](const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kLong;
  };
  const auto add_one = [](const at::Tensor& tensor) { return tensor + 1; };
  const std::pair<at::Tensor, at::Tensor> value{
      torch::zeros({1}), torch::zeros({1}, at::kLong)};
  const auto changed =
      recursively_apply(add_one, value, {.test_type = is_integer});
  EXPECT_EQ(changed.first.item<double>(), 0);
  EXPECT_EQ(changed.second.item<double>(), 1);
  expect_error<ConfigError>(
      [&] {
        recursively_apply(
            add_one,
            value,
            {.test_type = is_integer, .error_on_other_type = true});
      },
      "found a tensor that its test rejects");
  expect_error<ConfigError>(
      [&] {
        recursively_apply(
            add_one,
            std::pair<at::Tensor, int>(torch::ones({1}), 1),
            {.error_on_other_type = true});
      },
      "found a number");
  expect_error<ConfigError>(
      [&] {
        recursively_apply(
            add_one,
            std::map<int, std::tuple<std::string, at::Tensor>>{
                {1, {"label", torch::ones({1})}}},
            {.error_on_other_type = true});
      },
      "found a string");
}

TEST(DataStructure, MakesRoomForAValueOfAnotherRank) {
  run_in_worlds(3, [](const World& world) {
    Batch batch;
    if (world.rank() == 1) {
      batch["inputs"] = {torch::arange(6).reshape({2, 3}), at::Tensor()};
      batch["labels"] = {torch::ones({4}, at::kHalf)};
    }
    const Batch structure =
        broadcast_object(get_data_structure(batch), world.group(), 1);
    EXPECT_TRUE(structure.at("inputs")[0].is_meta());
    EXPECT_FALSE(structure.at("inputs")[1].defined());
    EXPECT_EQ(
        get_shape(structure),
        (std::vector<std::vector<std::int64_t>>{{2, 3}, {4}}));
    Batch room = world.rank() == 1 ? batch : initialize_tensors(structure);
    EXPECT_EQ(find_device(room), at::Device(at::kCPU));
    room = broadcast(room, world.group(), 1);
    EXPECT_TRUE(
        torch::equal(room.at("inputs")[0], torch::arange(6).reshape({2, 3})));
    EXPECT_TRUE(
        torch::equal(room.at("labels")[0], torch::ones({4}, at::kHalf)));
  });
}

TEST(FindDevice, FindsNothingWithoutTensors) {
  EXPECT_EQ(find_device(Batch{{"a", {at::Tensor()}}}), std::nullopt);
  EXPECT_EQ(
      find_device(Batch{{"a", {at::Tensor(), torch::empty({1}, at::kMeta)}}}),
      at::Device(at::kMeta));
}

TEST(CopyTensorToDevices, GivesAllRanksTheTensorOfOne) {
  run_in_worlds(3, [](const World& world) {
    const at::Tensor wanted =
        torch::tensor({1.5, 2.5}).to(at::kBFloat16).reshape({2, 1});
    const at::Tensor copy = copy_tensor_to_devices(
        world.rank() == 2 ? wanted : at::Tensor(), world);
    EXPECT_EQ(copy.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(torch::equal(copy, wanted));
  });
  for (const int owners : {0, 2}) {
    expect_error<ConfigError>(
        [&] {
          run_in_worlds(2, [&](const World& world) {
            static_cast<void>(copy_tensor_to_devices(
                world.rank() < owners ? torch::ones({1}) : at::Tensor(),
                world));
          });
        },
        std::to_string(owners) + " of 2 ranks");
  }
}

TEST(SendToDevice, LeavesOutTheKeysItIsTold) {
  const std::map<std::string, Batch> value{
      {"keep", {{"a", {torch::ones({1})}}}},
      {"send", {{"skip", {torch::ones({1})}}, {"b", {torch::ones({1})}}}}};
  const auto sent = send_to_device(
      value, at::Device(at::kMeta), {.skip_keys = {"skip", "keep"}});
  EXPECT_TRUE(sent.at("keep").at("a")[0].is_cpu());
  EXPECT_TRUE(sent.at("send").at("skip")[0].is_cpu());
  EXPECT_TRUE(sent.at("send").at("b")[0].is_meta());
  const std::unordered_map<std::string, at::Tensor> other{
      {"skip", torch::ones({1})}, {"b", torch::ones({1})}};
  EXPECT_TRUE(send_to_device(other, at::kMeta, {.skip_keys = {"skip"}})
                  .at("skip")
                  .is_cpu());
  EXPECT_TRUE(send_to_device(other, at::kMeta, true).at("skip").is_meta());
}

TEST(Gather, TakesTensorsInBraces) {
  run_in_worlds(2, [](const World& world) {
    const auto all = gather(
        {torch::full({1}, world.rank()), torch::full({2}, 5)}, world.group());
    ASSERT_EQ(all.size(), 2U);
    EXPECT_TRUE(torch::equal(all[0], torch::tensor({0, 1})));
    EXPECT_EQ(all[1].numel(), 4);
  });
}

}  // namespace nested_structure_test
}  // namespace accelerate
