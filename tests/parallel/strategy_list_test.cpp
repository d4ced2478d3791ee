#include "parallel/strategy_list.h"

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/recording_strategy.h"
#include "support/run_on_ranks.h"
#include "train/session/session.h"

namespace accelerate {
namespace strategy_list_test {

using detail::ParameterTable;
using detail::StrategyList;
using detail::StrategyTraits;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::IsEmpty;
using testing::RecordingStrategy;
using testing::run_on_ranks;

using Names = std::vector<std::string>;

// A list of recording strategies, "a" first.
struct Recorded {
  explicit Recorded(int count) {
    for (char name = 'a'; count > 0; --count, ++name) {
      auto strategy =
          std::make_unique<RecordingStrategy>(std::string(1, name), events);
      members.push_back(strategy.get());
      list.add(std::string(1, name), std::move(strategy));
    }
  }

  // Events since the last call.
  Names take_events() { return std::exchange(*events, {}); }

  testing::Events events = std::make_shared<Names>();
  std::vector<RecordingStrategy*> members;
  StrategyList list;
};

TEST(StrategyList, NotifiesInOrderAndOfEndsInReverse) {
  Recorded recorded(2);
  StrategyList& list = recorded.list;
  EXPECT_THAT(list.names(), ElementsAre("a", "b"));
  torch::nn::Linear net(2, 1);
  ParameterTable table(*net);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  list.prepare(*net, table);
  EXPECT_THAT(recorded.take_events(), ElementsAre("a:prepare", "b:prepare"));
  list.bind(sgd, table);
  EXPECT_THAT(recorded.take_events(), ElementsAre("a:bind", "b:bind"));
  list.before_forward();
  list.after_forward({});
  EXPECT_THAT(
      recorded.take_events(),
      ElementsAre(
          "a:before_forward",
          "b:before_forward",
          "a:after_forward",
          "b:after_forward"));
  list.before_backward(true, {});
  list.average_gradient({});
  list.after_backward(true);
  EXPECT_THAT(
      recorded.take_events(),
      ElementsAre(
          "a:before_backward",
          "b:before_backward",
          "a:average_gradient",
          "b:average_gradient",
          "b:after_backward",
          "a:after_backward"));
  list.before_step();
  list.after_step(sgd);
  list.step_locally(true);
  list.average_parameters(table);
  list.step_locally(false);
  list.after_load();
  EXPECT_THAT(
      recorded.take_events(),
      ElementsAre(
          "a:before_step",
          "b:before_step",
          "a:after_step",
          "b:after_step",
          "a:step_locally",
          "b:step_locally",
          "a:average_parameters",
          "b:average_parameters",
          "a:step_together",
          "b:step_together",
          "a:after_load",
          "b:after_load"));
  const World world({.rank = 0, .size = 1, .device = at::kCPU});
  detail::JoinRound round(world.group(), false);
  list.begin_join(round, 0);
  list.shadow({});
  list.end_join();
  EXPECT_THAT(
      recorded.take_events(),
      ElementsAre(
          "a:begin_join",
          "b:begin_join",
          "a:shadow",
          "b:shadow",
          "b:end_join",
          "a:end_join"));
}

TEST(StrategyList, NotifiesAllOfAFailureAndReturnsTheFirstError) {
  Recorded recorded(3);
  const std::runtime_error error("the loss is bad");
  EXPECT_EQ(recorded.list.on_failure(error), nullptr);
  EXPECT_THAT(
      recorded.take_events(),
      ElementsAre("c:on_failure", "b:on_failure", "a:on_failure"));
  recorded.members[0]->explains_failures = true;
  recorded.members[1]->explains_failures = true;
  const std::exception_ptr better = recorded.list.on_failure(error);
  EXPECT_THAT(
      recorded.take_events(),
      ElementsAre("c:on_failure", "b:on_failure", "a:on_failure"));
  ASSERT_NE(better, nullptr);
  expect_error<std::runtime_error>(
      [&] { std::rethrow_exception(better); }, "b knows why");
}

TEST(StrategyList, MergesTraitsOnceAllArePrepared) {
  Recorded recorded(2);
  recorded.members[0]->traits_after_prepare = {
      .takes_empty = true,
      .input_dtype = at::kHalf,
      .output_dtype = at::kHalf,
      .join_complaint = "no",
  };
  recorded.members[1]->traits_after_prepare = {
      .needs_outputs = true,
      .output_dtype = at::kBFloat16,
      .join_complaint = "never",
      .local_sgd_complaint = "alone"};
  EXPECT_FALSE(recorded.list.traits().needs_outputs);
  torch::nn::Linear net(2, 1);
  ParameterTable table(*net);
  recorded.list.prepare(*net, table);
  const StrategyTraits& traits = recorded.list.traits();
  EXPECT_TRUE(traits.takes_empty);
  EXPECT_TRUE(traits.needs_outputs);
  EXPECT_EQ(traits.input_dtype, at::kHalf);
  EXPECT_EQ(traits.output_dtype, at::kBFloat16);
  EXPECT_EQ(traits.join_complaint, "no\nnever");
  EXPECT_EQ(traits.local_sgd_complaint, "alone");
}

TEST(StrategyList, PassesOnStepsOfOptimizersThatStepOnTheModel) {
  Recorded recorded(1);
  torch::nn::Linear net(2, 1), other(2, 1);
  ParameterTable table(*net);
  // The optimizer steps on a different tensor, as with master weights.
  detail::Parameter& row = table.rows()[0];
  table.set_local(row, row.tensor.detach().clone().requires_grad_());
  torch::optim::SGD own({net->bias}, 0.1), of_local({row.local}, 0.1),
      of_other(other->parameters(), 0.1), unbound({net->bias}, 0.1);
  recorded.list.bind(own, table);
  recorded.list.bind(of_local, table);
  recorded.list.bind(of_other, table);
  recorded.take_events();
  recorded.list.after_step(of_other);
  recorded.list.after_step(unbound);
  EXPECT_THAT(recorded.take_events(), IsEmpty());
  recorded.list.after_step(own);
  recorded.list.after_step(of_local);
  EXPECT_THAT(
      recorded.take_events(), ElementsAre("a:after_step", "a:after_step"));
}

TEST(StrategyList, SavesAndLoadsStateByName) {
  Recorded recorded(3);
  recorded.members[0]->saved = StateDict{{"value", std::int64_t{1}}};
  recorded.members[2]->saved = StateDict{{"value", std::int64_t{3}}};
  const StateDict state = recorded.list.state_dict();
  EXPECT_EQ(state.values().size(), 2u);
  EXPECT_EQ(state.get<StateDict>("c").get<std::int64_t>("value"), 3);

  testing::Events events = std::make_shared<Names>();
  const auto strategy = [&] {
    auto made = std::make_unique<RecordingStrategy>("", events);
    made->saved = StateDict();
    return made;
  };
  StrategyList other;
  other.add("first", strategy());
  auto third = strategy();
  const RecordingStrategy& c = *third;
  other.add("c", std::move(third));
  EXPECT_THAT(other.load_state_dict(state), ElementsAre("a"));
  EXPECT_EQ(c.saved->get<std::int64_t>("value"), 3);
}

TEST(StrategyList, ReadsStateThatWasSavedByPosition) {
  for (const char* position : {"0", "1"}) {
    auto strategy = std::make_unique<RecordingStrategy>(
        "replicate", std::make_shared<Names>());
    strategy->saved = StateDict();
    const RecordingStrategy& replicate = *strategy;
    StrategyList list;
    list.add("replicate", std::move(strategy));
    const StateDict saved{{position, StateDict{{"value", std::int64_t{7}}}}};
    EXPECT_THAT(list.load_state_dict(saved), IsEmpty());
    EXPECT_EQ(replicate.saved->get<std::int64_t>("value"), 7);
    EXPECT_THAT(
        StrategyList().load_state_dict(saved), ElementsAre("replicate"));
  }
}

TEST(StrategyList, RefusesTwoWithOneName) {
  Recorded recorded(1);
  expect_error<InternalError>(
      [&] {
        recorded.list.add(
            "a", std::make_unique<RecordingStrategy>("a", recorded.events));
      },
      "two are called \"a\"");
}

// The techniques of a model with two linear layers on two ranks.
std::vector<std::string> techniques_of(
    const ParallelOptions& parallel,
    bool master_weights,
    int num_ranks = 2) {
  std::vector<std::string> names;
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.master_weights = master_weights,
         .parallel = parallel,
         .world = world});
    torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    const auto model = accelerator.prepare(net.ptr());
    if (accelerator.process_index() != 0) return;
    for (const std::string_view name : model.prepared()->strategies.names())
      names.emplace_back(name);
  });
  return names;
}

TEST(Techniques, AreThoseOfTheTableThatThePlanAsksFor) {
  const ActivationCheckpointingOptions recompute;
  EXPECT_THAT(techniques_of({}, false, 1), IsEmpty());
  EXPECT_THAT(techniques_of({}, false), ElementsAre("replicate"));
  EXPECT_THAT(
      techniques_of({.activation_checkpointing = recompute}, true),
      ElementsAre("master_weights", "replicate", "activation_checkpointing"));
  EXPECT_THAT(techniques_of({.shard = 2}, true), ElementsAre("shard"));
  EXPECT_THAT(
      techniques_of({.replicate = 2, .shard = 2}, false, 4),
      ElementsAre("shard"));
}

}  // namespace strategy_list_test
}  // namespace accelerate
