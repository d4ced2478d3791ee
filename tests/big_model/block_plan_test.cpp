#include "big_model/plan/block_plan.h"

#include <limits>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "big_model/module_trees.h"
#include "big_model/plan/forward_timeline.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace block_plan_test {

using ::testing::HasSubstr;

constexpr MachineSpeeds kSlowDisk{
    .flops_per_second = 1,
    .memory_bytes_per_second = 1e3,
    .link_bytes_per_second = 100,
    .disk_bytes_per_second = 10,
    .switch_seconds = 0.5};

std::vector<PlanBlock> blocks_of_chance() {
  std::vector<PlanBlock> blocks;
  for (int i = 0, count = *rc::gen::inRange(1, 6); i < count; ++i) {
    PlanBlock block{std::to_string(i)};
    block.num_bytes = *rc::gen::inRange(1, 20);
    block.num_bytes_fetched = block.num_bytes;
    block.seconds = *rc::gen::inRange(0, 30) / 10.0;
    blocks.push_back(block);
  }
  if (blocks.size() > 2 && *rc::gen::inRange(0, 3) == 0) {
    blocks.front().tie = 0;
    blocks.back().tie = 0;
    blocks.back().num_bytes = 0;
  }
  return blocks;
}

PlanLimits limits_of_chance() {
  PlanLimits limits;
  limits.has_accelerator = *rc::gen::arbitrary<bool>();
  const int devices = limits.has_accelerator ? *rc::gen::inRange(1, 3) : 1;
  for (int i = 0; i < devices; ++i)
    limits.devices.push_back(*rc::gen::inRange(0, 60));
  if (limits.has_accelerator && *rc::gen::arbitrary<bool>())
    limits.host = *rc::gen::inRange(0, 60);
  return limits;
}

// Tries all combinations of places.
std::optional<double> fastest(
    const std::vector<PlanBlock>& blocks,
    const PlanLimits& limits) {
  const int lowest = kFromDisk;
  const int highest = static_cast<int>(limits.devices.size()) - 1;
  std::vector<BlockPlace> places(blocks.size(), lowest);
  std::optional<double> best;
  while (true) {
    if (keeps_limits(blocks, places, limits)) {
      const double seconds =
          forward_seconds(blocks, places, kSlowDisk, limits.has_accelerator);
      if (!best || seconds < *best) best = seconds;
    }
    std::size_t i = 0;
    while (i < places.size() && places[i] == highest) places[i++] = lowest;
    if (i == places.size()) return best;
    ++places[i];
  }
}

TEST(BlockPlanLaws, FindsTheFastestPlaces) {
  EXPECT_TRUE(rc::check([] {
    const std::vector<PlanBlock> blocks = blocks_of_chance();
    const PlanLimits limits = limits_of_chance();
    const auto expected = fastest(blocks, limits);
    const auto found = find_places(blocks, limits, kSlowDisk);
    RC_ASSERT(found.has_value() == expected.has_value());
    if (!found) return;
    RC_ASSERT(keeps_limits(blocks, *found, limits));
    const double seconds =
        forward_seconds(blocks, *found, kSlowDisk, limits.has_accelerator);
    RC_ASSERT(seconds <= *expected * (1 + 1e-12));
  }));
}

TEST(BlockPlan, KeepsEverythingResidentWhereItFits) {
  testing::TreeMaker make;
  const PlannedDeviceMap planned =
      plan_map(make.sequential_of_three(), {.max_memory = {{"cpu", 1000}}});
  EXPECT_DOUBLE_EQ(planned.forward_seconds, planned.resident_seconds);
  for (const Placement& each : planned.map.placements())
    EXPECT_EQ(each.device, MapDevice("cpu")) << each.name;
}

TEST(BlockPlan, SaysWhyBlocksAreWhereTheyAre) {
  testing::TreeMaker make;
  const PlannedDeviceMap planned = plan_map(
      make.sequential_of_three(),
      {.max_memory = {{"cpu", 500}},
       .no_split_module_classes = {},
       .speeds = {.disk_bytes_per_second = 1e6}});
  EXPECT_GT(planned.forward_seconds, planned.resident_seconds);
  const std::string text = planned.map.explain();
  EXPECT_THAT(text, HasSubstr("fetched in"));
  EXPECT_THAT(text, HasSubstr("resident"));
  EXPECT_THAT(text, HasSubstr("disk"));
}

TEST(BlockPlan, NamesTheMemoryThatWouldDo) {
  testing::TreeMaker make;
  const ModuleNode model = make.sequential_of_three();
  testing::expect_error<ConfigError>(
      [&] { plan_map(model, {.max_memory = {{"cpu", 100}}}); }, "200 bytes");
}

TEST(BlockPlan, RefusesSpeedsThatAreNotPositive) {
  testing::TreeMaker make;
  const ModuleNode model = make.model_for_test();
  PlanDeviceMapOptions options{.max_memory = {{"cpu", 1000}}};
  options.speeds.disk_bytes_per_second = 0;
  testing::expect_error<ConfigError>(
      [&] { plan_map(model, options); }, "disk_bytes_per_second");
  options.speeds = {};
  options.num_tokens = 0;
  testing::expect_error<ConfigError>(
      [&] { plan_map(model, options); }, "num_tokens");
}

TEST(BlockPlan, TakesTheSecondsThatAreKnown) {
  testing::TreeMaker make;
  const std::vector<PlanBlock> blocks =
      plan_blocks(make.model_for_test(), {.block_seconds = {{"linear2", 7}}});
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[2].name, "linear2");
  EXPECT_EQ(blocks[2].seconds, 7);
  EXPECT_EQ(blocks[2].num_bytes, 100);
  // 72 bytes from memory at 5e10 bytes per second take longer than 2 * 8
  // operations at 1e12 per second.
  EXPECT_DOUBLE_EQ(blocks[1].seconds, 72 / 5e10);
}

}  // namespace block_plan_test
}  // namespace accelerate::detail
