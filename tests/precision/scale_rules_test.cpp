#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <ATen/Functions.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "precision/fp8/device_scales.h"
#include "precision/fp8/scale_rules.h"

namespace accelerate::detail {

namespace scale_rules_test {

using ::testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(ScaleRules, BringTheLargestValueToTheFormatsLargest) {
  EXPECT_EQ(scale_of_amax(2, Float8Format::e4m3fn, false), 224);
  EXPECT_EQ(scale_of_amax(2, Float8Format::e4m3fn, true), 128);
  EXPECT_EQ(scale_of_amax(3.5, Float8Format::e4m3fn, true), 128);
  EXPECT_EQ(scale_of_amax(7, Float8Format::e5m2, true), 8192);
  EXPECT_EQ(scale_of_amax(0, Float8Format::e5m2, false), 57344e12F);
  EXPECT_EQ(scale_of_amax(kInfinity, Float8Format::e5m2, true), 0);
  EXPECT_TRUE(std::isnan(scale_of_amax(kNan, Float8Format::e5m2, true)));
}

TEST(ScaleRules, NeverExceedTheFormatInABlock) {
  const auto type = Float8Format::e4m3fn;
  EXPECT_EQ(e8m0_of_amax(448, type), 127);
  EXPECT_EQ(e8m0_of_amax(449, type), 128);
  EXPECT_EQ(e8m0_of_amax(224, type), 126);
  EXPECT_EQ(e8m0_of_amax(0, type), 0);
  EXPECT_EQ(e8m0_of_amax(1e-45F, type), 0);
  EXPECT_EQ(e8m0_of_amax(std::numeric_limits<float>::max(), type), 247);
  EXPECT_EQ(e8m0_of_amax(kInfinity, type), 0xfe);
  EXPECT_EQ(e8m0_of_amax(kNan, type), 0xff);
  EXPECT_EQ(scale_of_e8m0(127), 1);
  EXPECT_EQ(scale_of_e8m0(130), 0.125F);
  EXPECT_EQ(scale_of_e8m0(0), std::ldexp(1.0F, 127));
  EXPECT_EQ(scale_of_e8m0(0xfe), std::ldexp(1.0F, -127));
  EXPECT_TRUE(std::isnan(scale_of_e8m0(0xff)));
}

// 2^(code - 127) is the smallest power of two which, times the format's largest
// value, is at least the block's; for every exponent and around every step.
TEST(ScaleRules, AreTheSmallestPowersOfTwoThatFit) {
  for (const auto type :
       {Float8Format::e4m3fn,
        Float8Format::e5m2,
        Float8Format::e4m3fnuz,
        Float8Format::e5m2fnuz}) {
    const auto step =
        std::bit_cast<std::uint32_t>(largest_value(type)) & 0x7fffff;
    for (std::uint32_t exponent = 0; exponent < 255; ++exponent) {
      for (const std::uint32_t mantissa :
           {0U, 1U, step - 1, step, step + 1, 0x7fffffU}) {
        const auto amax = std::bit_cast<float>(exponent << 23 | mantissa);
        int expected = 0;
        while (std::ldexp(double{largest_value(type)}, expected - 127) < amax)
          ++expected;
        EXPECT_EQ(e8m0_of_amax(amax, type), expected) << amax;
      }
    }
  }
  for (int code = 0; code < 0xff; ++code) {
    EXPECT_EQ(
        scale_of_e8m0(static_cast<std::uint8_t>(code)),
        std::ldexp(1.0F, 127 - code));
  }
}

TEST(DelayedScaling, FollowsTheHistory) {
  DelayedScale newest(Float8Format::e4m3fn, {.history_len = 3});
  DelayedScale largest(
      Float8Format::e4m3fn, {.history_len = 3, .uses_largest = true});
  std::vector<float> newest_scales, largest_scales;
  for (const float amax : {4.0F, 2.0F, 1.0F, 1.0F}) {
    newest.update(amax);
    largest.update(amax);
    newest_scales.push_back(newest.scale());
    largest_scales.push_back(largest.scale());
  }
  EXPECT_THAT(newest_scales, ElementsAre(112, 224, 448, 448));
  EXPECT_THAT(largest_scales, ElementsAre(112, 112, 112, 224));
  EXPECT_THAT(largest.history(), ElementsAre(0, 1, 1));
}

TEST(DelayedScaling, HasAMarginAndAnInterval) {
  DelayedScale scale(
      Float8Format::e5m2, {.history_len = 1, .margin = 2, .interval = 2});
  scale.update(1);
  EXPECT_EQ(scale.scale(), 1);
  scale.update(2);
  EXPECT_EQ(scale.scale(), 57344.0F / 2 / 4);
}

TEST(DelayedScaling, KeepsTheScaleWithoutAUsableValue) {
  DelayedScale scale(Float8Format::e4m3fn, {.history_len = 2});
  scale.update(2);
  for (const float amax : {0.0F, kInfinity, kNan}) {
    scale.update(amax);
    EXPECT_EQ(scale.scale(), 224);
  }
  scale.update(1e-38F);
  EXPECT_EQ(scale.scale(), std::numeric_limits<float>::max());
}

TEST(DelayedScaling, GoesOnFromWhatWasSaved) {
  const DelayedScaleOptions options{.history_len = 4, .uses_largest = true};
  DelayedScale before(Float8Format::e4m3fn, options);
  for (const float amax : {8.0F, 4.0F, 2.0F, 1.0F}) before.update(amax);
  DelayedScale same(Float8Format::e4m3fn, options);
  same.restore(before.scale(), before.history(), before.num_updates());
  DelayedScale shorter(
      Float8Format::e4m3fn, {.history_len = 3, .uses_largest = true});
  shorter.restore(before.scale(), before.history(), before.num_updates());
  EXPECT_EQ(same.history(), before.history());
  EXPECT_THAT(shorter.history(), ElementsAre(0, 2, 1));
  before.update(0.5F);
  same.update(0.5F);
  EXPECT_EQ(same.scale(), before.scale());
  EXPECT_EQ(same.num_updates(), 5);
}

TEST(DelayedScaling, CountsStepsWhoseScaleDidNotFit) {
  EXPECT_EQ(fit_of(896, 1, Float8Format::e4m3fn), ScaleFit::good);
  EXPECT_EQ(fit_of(897, 1, Float8Format::e4m3fn), ScaleFit::saturates);
  EXPECT_EQ(fit_of(0x1.02p-10F, 1, Float8Format::e4m3fn), ScaleFit::good);
  EXPECT_EQ(fit_of(0x1p-10F, 1, Float8Format::e4m3fn), ScaleFit::vanishes);
  EXPECT_EQ(fit_of(0x1p-16F, 1, Float8Format::e5m2), ScaleFit::good);
  EXPECT_EQ(fit_of(0x1p-17F, 1, Float8Format::e5m2), ScaleFit::vanishes);
  EXPECT_EQ(fit_of(0, 1, Float8Format::e5m2), ScaleFit::good);
  EXPECT_EQ(fit_of(kNan, 1, Float8Format::e5m2), ScaleFit::not_finite);
  DelayedScale scale(Float8Format::e4m3fn, {.history_len = 2, .interval = 9});
  std::vector<std::int64_t> counts;
  for (const float amax : {1000.0F, 2000.0F, kInfinity, 1.0F, 1e-9F, 1e-9F}) {
    scale.update(amax);
    counts.push_back(scale.num_misfits());
  }
  EXPECT_THAT(counts, ElementsAre(1, 2, 1, 0, 1, 2));
}

// Steps without values, with infinities, and with values that overflow the
// scale are among them.
TEST(ScaleRules, AreTheSameOnDevices) {
  EXPECT_TRUE(rc::check([] {
    const DelayedScaleOptions options{
        .history_len = *rc::gen::inRange<std::int64_t>(1, 5),
        .uses_largest = *rc::gen::arbitrary<bool>(),
        .margin = *rc::gen::inRange<std::int64_t>(-2, 4),
        .interval = *rc::gen::inRange<std::int64_t>(1, 4)};
    std::vector<DelayedScale> host{
        {Float8Format::e4m3fn, options}, {Float8Format::e5m2, options}};
    DeviceScales device({&host[0], &host[1]}, options, at::kCPU);
    const auto num_steps = *rc::gen::inRange(1, 12);
    for (int step = 0; step < num_steps; ++step) {
      const auto amax = rc::gen::elementOf(std::vector<float>{
          0, 0, 1, 3.5, 448, 1e-3F, 1e-38F, 1e-44F, 3e38F, kInfinity});
      const std::vector<float> amaxes{*amax, *amax};
      if (amaxes != std::vector<float>{0, 0})
        for (std::size_t i = 0; i < 2; ++i) host[i].update(amaxes[i]);
      device.update(at::tensor(amaxes));
      for (std::int64_t i = 0; i < 2; ++i) {
        RC_ASSERT(
            device.scales()[i].item<float>() ==
            host[static_cast<std::size_t>(i)].scale());
      }
      // It can begin anywhere.
      if (*rc::gen::inRange(0, 4) == 0)
        device = DeviceScales({&host[0], &host[1]}, options, at::kCPU);
    }
  }));
}

}  // namespace scale_rules_test

}  // namespace accelerate::detail
