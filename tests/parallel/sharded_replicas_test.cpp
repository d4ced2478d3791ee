// ReplicateOptions together with sharding: which take effect, which are listed
// as ignored, and which are refused.
#include <accelerate/accelerate.h>
#include <accelerate/bucket_hook.h>

#include "parallel/plan/plan.h"
#include "parallel/shard/shard_options.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace sharded_replicas_test {

using detail::make_plan;
using detail::ParallelPlan;
using ::testing::ElementsAre;
using testing::expect_error;
using ::testing::IsEmpty;
using testing::run_on_ranks;

ParallelPlan plan(
    const ReplicateOptions& replicate,
    int replicas,
    int shards,
    bool is_inherited = false,
    bool asks_for_shards = false) {
  detail::PlanRequest request{
      .replicate = replicate,
      .replicate_is_inherited = is_inherited,
      .num_ranks = replicas * shards,
      .num_local_ranks = replicas * shards};
  request.training.degree(Axis::replicate) = replicas;
  request.training.degree(Axis::shard) = shards;
  if (shards > 1 || asks_for_shards) {
    request.training.sharding.emplace();
    request.training.sharding->span = detail::ShardSpan::all;
  }
  return make_plan(request);
}

ReplicateOptions with_hook(CommHook hook) {
  ReplicateOptions options;
  options.comm_hook = hook;
  return options;
}

TEST(ShardedReplicas, AreAveragedInTheHooksDtype) {
  ReplicateOptions options = with_hook(CommHook::bf16);
  options.bucket_bytes = 1000;
  const auto hybrid = plan(options, 2, 2);
  EXPECT_EQ(hybrid.techniques.shard.replica_dtype, at::kBFloat16);
  EXPECT_EQ(hybrid.techniques.shard.message_bytes, 1000);
  EXPECT_THAT(hybrid.ignored, IsEmpty());
  EXPECT_EQ(
      plan(with_hook(CommHook::fp16), 2, 2).techniques.shard.replica_dtype,
      at::kHalf);
  EXPECT_EQ(plan({}, 2, 2).techniques.shard.replica_dtype, std::nullopt);
}

TEST(ShardedReplicas, RefuseWhatCannotBeHonoured) {
  expect_error<ConfigError>(
      [] { plan(with_hook(CommHook::bf16), 1, 4); }, "set replicate above 1");
  ReplicateOptions wrapped = with_hook(CommHook::fp16);
  wrapped.comm_wrapper = CommWrapper::bf16;
  ReplicateOptions own;
  own.bucket_hook = std::make_shared<BucketHook>(
      BucketHook{.reduce = [](c10d::GradBucket&, const BucketContext&) {
        return c10::intrusive_ptr<c10::ivalue::Future>();
      }});
  for (const ReplicateOptions& options :
       {with_hook(CommHook::power_sgd), wrapped, own}) {
    expect_error<ConfigError>(
        [&] { plan(options, 2, 2); }, "not averaged in buckets");
    // The Accelerator's options may be meant for its other models.
    EXPECT_NO_THROW(plan(options, 2, 2, /*is_inherited=*/true));
    EXPECT_NO_THROW(plan(options, 4, 1));
  }
}

TEST(ShardedReplicas, ListWhatDoesNothing) {
  ReplicateOptions options;
  options.find_unused_parameters = true;
  options.gradient_as_bucket_view = true;
  options.bucket_bytes = 1000;
  EXPECT_THAT(
      detail::names_of(plan(options, 1, 4).ignored),
      ElementsAre(
          "bucket_bytes", "find_unused_parameters", "gradient_as_bucket_view"));
  EXPECT_THAT(
      detail::names_of(plan(options, 2, 2).ignored),
      ElementsAre("find_unused_parameters", "gradient_as_bucket_view"));
  EXPECT_THAT(plan(options, 4, 1).ignored, IsEmpty());
  EXPECT_THAT(plan(options, 1, 4, /*is_inherited=*/true).ignored, IsEmpty());
}

TEST(ReplicateOptions, AreCheckedOnOneProcessToo) {
  ReplicateOptions negative, wrapper;
  negative.bucket_bytes = -7;
  wrapper.comm_wrapper = CommWrapper::fp16;
  for (const int shards : {1, 4}) {
    expect_error<ConfigError>(
        [&] { plan(negative, 1, shards); },
        "must be at least 1, but are -7 and");
    expect_error<ConfigError>(
        [&] { plan(wrapper, 1, shards); }, "without a comm_hook");
  }
}

TEST(ReplicateOptions, BesideShardingAreRefusedOnOneProcessToo) {
  const auto alone = [](CommHook hook) {
    return plan(with_hook(hook), 1, 1, false, /*asks_for_shards=*/true);
  };
  expect_error<ConfigError>(
      [&] { alone(CommHook::power_sgd); }, "not averaged in buckets");
  EXPECT_THAT(alone(CommHook::bf16).ignored, IsEmpty());
}

// bf16 rounds these values, so the sums show in which dtype they were added.
TEST(ShardedReplicas, ExchangeGradientsInTheHooksDtype) {
  for (const CommHook hook : {CommHook::none, CommHook::bf16}) {
    std::vector<float> gradients(4);
    run_on_ranks(4, [&](const WorldOptions& world) {
      const Accelerator accelerator(
          {.parallel =
               {.replicate = 2,
                .shard = 2,
                .replicate_options = with_hook(hook)},
           .world = world});
      torch::nn::Linear net(torch::nn::LinearOptions(1, 2).bias(false));
      torch::nn::init::zeros_(net->weight);
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const float x =
          accelerator.mesh().coordinate(Axis::replicate) == 0 ? 1.001F : 3.0F;
      accelerator.backward(model(torch::full({1, 1}, x)).sum());
      gradients[static_cast<std::size_t>(accelerator.process_index())] =
          sgd.param_groups()[0].params()[0].grad().item<float>();
    });
    for (const float gradient : gradients) {
      if (hook == CommHook::none) {
        EXPECT_FLOAT_EQ(gradient, 2.0005F);
      } else {
        EXPECT_EQ(gradient, 2);
      }
    }
  }
}

}  // namespace sharded_replicas_test
}  // namespace accelerate
