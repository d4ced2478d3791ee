#include "track/profiler/operator_recorder.h"

#include <map>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::operator_recorder_test {

using detail::EventKind;
using detail::EventNode;
using detail::OperatorRecorder;
using detail::ParameterOwners;
using detail::RecordedCycle;
using detail::RecordedEvent;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

template <class Body>
RecordedCycle record(
    const ProfileOptions& options,
    Body&& body,
    const ParameterOwners& owners = {}) {
  const auto recorder = std::make_shared<OperatorRecorder>(
      options, std::make_shared<const ParameterOwners>(owners));
  recorder->start();
  body();
  recorder->stop();
  return recorder->take();
}

std::int64_t flops_of(const RecordedCycle& cycle, const std::string& name) {
  std::int64_t flops = 0;
  for (const RecordedEvent& event : cycle.events)
    flops += event.name == name ? event.flops : 0;
  return flops;
}

std::size_t count_of(const RecordedCycle& cycle, const std::string& name) {
  return static_cast<std::size_t>(std::count_if(
      cycle.events.begin(), cycle.events.end(), [&](const auto& event) {
        return event.name == name;
      }));
}

const RecordedEvent& first(
    const RecordedCycle& cycle,
    const std::string& name) {
  for (const RecordedEvent& event : cycle.events) {
    if (event.name == name) return event;
  }
  throw std::runtime_error("no event " + name);
}

TEST(OperatorRecorder, RecordsOperatorsWithTheirShapesInsideTheirCallers) {
  const at::Tensor input = at::ones({5, 3});
  const at::Tensor weight = at::ones({4, 3});
  const RecordedCycle cycle = record({.record_shapes = true}, [&] {
    (void)at::linear(input, weight);
    (void)at::cat({input, input});
  });
  EXPECT_EQ(first(cycle, "aten::linear").input_shapes, "[[5, 3], [4, 3], []]");
  EXPECT_EQ(first(cycle, "aten::cat").input_shapes, "[[[5, 3], [5, 3]], []]");
  for (std::size_t i = 0; i < cycle.events.size(); ++i) {
    const RecordedEvent& event = cycle.events[i];
    EXPECT_GE(event.begin_ns, cycle.begin_ns);
    EXPECT_GE(event.end_ns, event.begin_ns);
    EXPECT_GE(cycle.nodes[i].self_ns, 0);
    if (cycle.nodes[i].parent == EventNode::kNone) continue;
    const RecordedEvent& parent = cycle.events[cycle.nodes[i].parent];
    EXPECT_LE(parent.begin_ns, event.begin_ns);
    EXPECT_GE(parent.end_ns, event.end_ns);
  }
}

TEST(OperatorRecorder, RecordsNothingBeforeAndAfter) {
  (void)at::ones({2}).add(1);
  const RecordedCycle cycle = record({}, [] { (void)at::ones({2}).exp(); });
  (void)at::ones({2}).sub(1);
  EXPECT_EQ(count_of(cycle, "aten::exp"), 1U);
  EXPECT_EQ(count_of(cycle, "aten::add"), 0U);
  EXPECT_EQ(count_of(cycle, "aten::sub"), 0U);
  EXPECT_TRUE(first(cycle, "aten::exp").input_shapes.empty());
}

TEST(OperatorRecorder, FollowsTheBackwardOfItsThread) {
  const at::Tensor weight = torch::ones({3, 3}, at::requires_grad());
  const RecordedCycle cycle =
      record({}, [&] { at::ones({2, 3}).mm(weight).sum().backward(); });
  EXPECT_EQ(count_of(cycle, "MmBackward0"), 1U);
  // An operator and its node in the backward have the same number.
  EXPECT_EQ(
      first(cycle, "aten::mm").sequence, first(cycle, "MmBackward0").sequence);
}

TEST(OperatorRecorder, CountsTheOperationsOfProductsExactly) {
  torch::nn::Conv2d convolution(3, 4, 3);
  const RecordedCycle cycle = record({.with_flops = true}, [&] {
    (void)at::ones({2, 3}).mm(at::ones({3, 5}));
    (void)at::ones({4, 2, 3}).bmm(at::ones({4, 3, 5}));
    (void)at::addmm(at::ones({5}), at::ones({2, 3}), at::ones({3, 5}));
    (void)convolution(at::ones({2, 3, 8, 8}));
    (void)at::ones({6, 7}).mul(at::ones({6, 7}));
    (void)at::ones({6, 7}).exp();
  });
  EXPECT_EQ(flops_of(cycle, "aten::mm"), 2 * 2 * 3 * 5);
  EXPECT_EQ(flops_of(cycle, "aten::bmm"), 2 * 4 * 2 * 3 * 5);
  EXPECT_EQ(flops_of(cycle, "aten::addmm"), 2 * 2 * 3 * 5);
  // 2 images with 4 channels of 6 x 6 results, each of 3 x 3 x 3 products.
  EXPECT_EQ(flops_of(cycle, "aten::conv2d"), 2 * 2 * 4 * 6 * 6 * 3 * 3 * 3);
  EXPECT_EQ(flops_of(cycle, "aten::mul"), 6 * 7);
  EXPECT_EQ(flops_of(cycle, "aten::exp"), 0);
}

TEST(OperatorRecorder, EstimatesNothingUnlessAsked) {
  const RecordedCycle cycle =
      record({}, [] { (void)at::ones({2, 3}).mm(at::ones({3, 5})); });
  EXPECT_EQ(flops_of(cycle, "aten::mm"), 0);
  EXPECT_THAT(cycle.memory, IsEmpty());
}

TEST(OperatorRecorder, SeesMemoryComeAndGo) {
  const RecordedCycle cycle = record({.profile_memory = true}, [] {
    const at::Tensor sum = at::ones({1000}).add(at::ones({1000}));
    EXPECT_EQ(sum.numel(), 1000);
  });
  ASSERT_FALSE(cycle.memory.empty());
  std::map<const void*, std::int64_t> by_address;
  std::int64_t allocated = 0;
  for (const auto& change : cycle.memory) {
    by_address[change.address] += change.bytes;
    allocated += std::max<std::int64_t>(change.bytes, 0);
  }
  for (const auto& [address, bytes] : by_address) EXPECT_EQ(bytes, 0);
  // Three tensors of 1000 floats; operators can allocate a few more numbers.
  EXPECT_GE(allocated, 12'000);
  std::int64_t in_add = 0;
  for (std::size_t i = 0; i < cycle.events.size(); ++i) {
    if (cycle.events[i].name == "aten::add")
      in_add += cycle.nodes[i].memory_bytes;
  }
  EXPECT_EQ(in_add, 4000);
}

TEST(OperatorRecorder, NamesTheOwnerOfAParameterForAllThatItsOperatorCalls) {
  const at::Tensor weight = at::ones({4, 3});
  const RecordedCycle cycle = record(
      {.with_modules = true},
      [&] {
        (void)at::linear(at::ones({2, 3}), weight);
        (void)at::ones({2}).exp();
      },
      {{weight.unsafeGetTensorImpl(), "Net.fc1"}});
  std::map<std::string, std::string> modules;
  for (std::size_t i = 0; i < cycle.events.size(); ++i)
    modules[cycle.events[i].name] = cycle.nodes[i].module;
  EXPECT_EQ(modules.at("aten::linear"), "Net.fc1");
  EXPECT_EQ(modules.at("aten::t"), "Net.fc1");
  EXPECT_EQ(modules.at("aten::exp"), "");
}

TEST(OperatorRecorder, NestsUserRanges) {
  const RecordedCycle cycle = record({}, [] {
    const ProfileRange outer("outer");
    (void)at::ones({2}).exp();
    const ProfileRange inner("inner");
    (void)at::ones({2}).log();
  });
  std::map<std::string, std::string> parents;
  for (std::size_t i = 0; i < cycle.events.size(); ++i) {
    const std::size_t parent = cycle.nodes[i].parent;
    parents[cycle.events[i].name] =
        parent == EventNode::kNone ? "" : cycle.events[parent].name;
  }
  EXPECT_EQ(parents.at("aten::exp"), "outer");
  EXPECT_EQ(parents.at("inner"), "outer");
  EXPECT_EQ(parents.at("aten::log"), "inner");
  EXPECT_EQ(first(cycle, "inner").kind, EventKind::user_range);
}

TEST(OperatorRecorder, RefusesAThreadThatAnotherOneRecords) {
  const auto make = [] {
    return std::make_shared<OperatorRecorder>(
        ProfileOptions(), std::make_shared<const ParameterOwners>());
  };
  const auto one = make();
  one->start();
  testing::expect_error<ConfigError>(
      [&] { make()->start(); }, "another one records");
  one->stop();
  const auto other = make();
  other->start();
  other->stop();
}

TEST(OperatorRecorder, DropsWhatCameBeforeItWasCleared) {
  const auto recorder = std::make_shared<OperatorRecorder>(
      ProfileOptions(), std::make_shared<const ParameterOwners>());
  recorder->start();
  {
    const ProfileRange across("across");
    (void)at::ones({2}).exp();
    recorder->clear();
    (void)at::ones({2}).log();
  }
  recorder->stop();
  const RecordedCycle cycle = recorder->take();
  EXPECT_EQ(count_of(cycle, "aten::exp"), 0U);
  EXPECT_EQ(count_of(cycle, "across"), 0U);
  EXPECT_EQ(count_of(cycle, "aten::log"), 1U);
}

[[gnu::noinline]] at::Tensor function_of_the_program(const at::Tensor& x) {
  at::Tensor result = x.exp();
  // Not a tail call, so that the function stays on the stack.
  EXPECT_EQ(result.numel(), 2);
  return result;
}

TEST(OperatorRecorder, TellsWhichFunctionsLedToAnOperator) {
  const RecordedCycle cycle = record({.with_stack = true}, [] {
    (void)function_of_the_program(at::ones({2}));
  });
  const auto functions = functions_of(cycle, first(cycle, "aten::exp"));
  // Debug information gives the function's name, an export table at least the
  // program's.
  ASSERT_FALSE(functions.empty());
  for (const std::string& function : functions) {
    EXPECT_THAT(function, Not(HasSubstr("at::_ops")));
    EXPECT_THAT(function, Not(HasSubstr("libtorch")));
    EXPECT_THAT(function, Not(HasSubstr("track_tests(")));
  }
}

}  // namespace accelerate::operator_recorder_test
