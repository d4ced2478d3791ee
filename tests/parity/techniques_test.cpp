// Every technique with every precision, window and number of ranks ends with
// the weights of one process on the same global batches. All cases share one
// net and one loop (support/parity_task.h), so that a failure names its case.
#include <cmath>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <accelerate/accelerate.h>

#include "parallel/plan/plan.h"
#include "support/expect_error.h"
#include "support/gpu_device.h"
#include "support/parity_task.h"
#include "support/parity_techniques.h"

namespace accelerate {
namespace techniques_test {

using testing::ParityRun;
using testing::run_of;
using testing::Technique;
using testing::techniques;
using testing::tolerance_of;
using testing::train_parity_net;
using testing::Weights;

using Case = std::tuple<Technique, Precision, int, int>;

class TechniqueParity : public ::testing::TestWithParam<Case> {};

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [technique, precision, accumulation, num_ranks] = info.param;
  return technique.name + "_" + std::string(accelerate::name_of(precision)) +
      "_window" + std::to_string(accumulation) + "_ranks" +
      std::to_string(num_ranks);
}

// The weights of one process, computed once for all cases that expect them.
const Weights& weights_of_one_process(
    const Technique& technique,
    Precision precision,
    int accumulation) {
  static std::map<
      std::tuple<bool, bool, bool, Float8Attention, Precision, int>,
      Weights>
      known;
  Technique plain;
  plain.master_weights = technique.master_weights;
  plain.has_experts = technique.has_experts;
  plain.is_ms_amp = technique.is_ms_amp;
  plain.float8_attention = technique.float8_attention;
  const std::tuple key(
      plain.master_weights,
      plain.has_experts,
      plain.is_ms_amp,
      plain.float8_attention,
      precision,
      accumulation);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  Weights weights =
      train_parity_net(run_of(plain, precision, accumulation, 1)).weights;
  return known.emplace(key, std::move(weights)).first->second;
}

TEST_P(TechniqueParity, EndsWithTheWeightsOfOneProcess) {
  const auto& [technique, precision, accumulation, num_ranks] = GetParam();
  if (const auto missing = testing::missing_device_of_ranks(); !missing.empty())
    GTEST_SKIP() << "label gpu was not run: " << missing;
  if (!testing::can_run_on(num_ranks))
    GTEST_SKIP() << "the launcher started another number of ranks";
  if (num_ranks % technique.divides_ranks != 0)
    GTEST_SKIP() << "needs a multiple of " << technique.divides_ranks;
  if (technique.master_weights && precision == Precision::no)
    GTEST_SKIP() << "masters are of 16-bit parameters";
  const Weights& one =
      weights_of_one_process(technique, precision, accumulation);
  const Weights many =
      train_parity_net(run_of(technique, precision, accumulation, num_ranks))
          .weights;
  // Only the main one gets the weights, where ranks are processes.
  if (testing::ranks_are_processes() && many.empty()) return;
  ASSERT_EQ(many.size(), one.size());
  const double tolerance = tolerance_of(precision);
  for (const auto& [name, tensor] : one) {
    ASSERT_TRUE(many.contains(name)) << name;
    const double difference =
        (many.at(name) - tensor).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << name;
    EXPECT_TRUE(std::isfinite(difference)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    TechniqueParity,
    ::testing::Combine(
        ::testing::ValuesIn(techniques()),
        ::testing::Values(Precision::no, Precision::bf16),
        ::testing::Values(1, 3),
        ::testing::Values(1, 2, 3, 4)),
    case_name);

INSTANTIATE_TEST_SUITE_P(
    ScaledPrecision,
    TechniqueParity,
    ::testing::Combine(
        ::testing::ValuesIn(techniques()),
        ::testing::Values(Precision::fp16, Precision::fp8),
        ::testing::Values(3),
        ::testing::Values(2, 3)),
    case_name);

// What each technique has to train in: one whose name says it all, in fp8
// where the technique is about it.
Precision precision_of(const Technique& technique) {
  const bool is_fp8 = technique.is_ms_amp ||
      technique.float8_attention != Float8Attention::none;
  if (is_fp8) return Precision::fp8;
  return technique.master_weights ? Precision::bf16 : Precision::no;
}

void expect_same(
    const Technique& technique,
    const Weights& found,
    const Weights& expected) {
  ASSERT_EQ(found.size(), expected.size()) << technique.name;
  const double tolerance = tolerance_of(precision_of(technique));
  for (const auto& [key, tensor] : expected) {
    const double difference =
        (found.at(key) - tensor).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << technique.name << ": " << key;
  }
}

TEST(Techniques, TrainByPlainBackwards) {
  constexpr int kWindow = 3;
  for (const Technique& technique : techniques()) {
    const Precision precision = precision_of(technique);
    ParityRun run = run_of(technique, precision, kWindow, 2);
    run.is_plain = run.is_quiet = true;
    expect_same(
        technique,
        train_parity_net(run).weights,
        weights_of_one_process(technique, precision, kWindow));
  }
}

TEST(Techniques, ClipInTheirSteps) {
  for (const int window : {1, 3}) {
    for (const Technique& technique : techniques()) {
      const Precision precision = precision_of(technique);
      ParityRun run = run_of(technique, precision, window, 2);
      run.clips_in_step = true;
      expect_same(
          technique,
          train_parity_net(run).weights,
          weights_of_one_process(technique, precision, window));
    }
  }
}

// Where the handle's step does more than the optimizer's, an error says so.
TEST(Techniques, TrainByTheOptimizersOwnStepsOrNameThem) {
  // DeepSpeed's configuration clips; ZeRO-1 and 2 gather after the handle's
  // steps.
  const std::set<std::string> refusing{
      "master_weights", "zero1", "zero2", "zero3"};
  for (const Technique& technique : techniques()) {
    if (technique.is_ms_amp) continue;  // A warning says that it is needed.
    const Precision precision = precision_of(technique);
    ParityRun run = run_of(technique, precision, 1, 2);
    run.steps_itself = true;
    if (refusing.contains(technique.name)) {
      testing::expect_error<ConfigError>(
          [&] { train_parity_net(run); },
          "an optimizer was stepped directly, not through the handle");
      continue;
    }
    expect_same(
        technique,
        train_parity_net(run).weights,
        weights_of_one_process(technique, precision, 1));
  }
}

// Fails if a technique has no case above.
TEST(Techniques, AreAllInTheSuite) {
  std::set<std::string> found;
  for (const Technique& technique : techniques()) {
    for (const std::string& name :
         train_parity_net(run_of(technique, Precision::fp8, 1, 2)).strategies)
      found.insert(name);
  }
  std::set<std::string> all;
  for (const std::string_view name : detail::technique_names())
    all.emplace(name);
  EXPECT_EQ(found, all);
}

}  // namespace techniques_test
}  // namespace accelerate
