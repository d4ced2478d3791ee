// A user-defined reduction of buckets: what it is given, and what can go wrong.
#include <mutex>
#include <set>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/accelerate.h>

#include "support/expect_error.h"
#include "support/run_on_ranks.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace bucket_hook_test {

using testing::expect_error;
using testing::run_on_ranks;

using Future = c10::intrusive_ptr<c10::ivalue::Future>;

Future sum_of(const at::Tensor& tensor, const BucketContext& ranks) {
  std::vector<at::Tensor> tensors{tensor};
  return ranks.process_group.allreduce(tensors)->getFuture();
}

Future completed(c10::IValue value) {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::AnyType::get());
  future->markCompleted(std::move(value));
  return future;
}

torch::nn::Linear layer() {
  torch::nn::Linear net(torch::nn::LinearOptions(2, 1).bias(false));
  torch::nn::init::zeros_(net->weight);
  return net;
}

// The gradient that rank `rank` contributes is rank + 1.
torch::Tensor backward_on(
    const Accelerator& accelerator,
    const std::shared_ptr<BucketHook>& hook,
    CommWrapper wrapper = CommWrapper::none) {
  const auto net = layer();
  ModelOptions options;
  options.replicate_options.emplace();
  options.replicate_options->bucket_hook = hook;
  options.replicate_options->comm_wrapper = wrapper;
  auto model = accelerator.prepare(with_options(net, options));
  accelerator.backward(
      model(torch::full({1, 2}, accelerator.process_index() + 1, torch::kFloat))
          .sum());
  return net->weight.grad().clone();
}

TEST(BucketHook, ReplacesTheMean) {
  for (const CommWrapper wrapper :
       {CommWrapper::none, CommWrapper::fp16, CommWrapper::bf16}) {
    run_on_ranks(3, [&](const WorldOptions& world) {
      const Accelerator accelerator({.world = world});
      std::set<at::ScalarType> dtypes;
      const auto hook = std::make_shared<BucketHook>(BucketHook{
          .reduce = [&](c10d::GradBucket& bucket, const BucketContext& ranks) {
            EXPECT_EQ(ranks.divisor, 3);
            EXPECT_EQ(bucket.getBuffer().dim(), 1);
            dtypes.insert(bucket.getBuffer().scalar_type());
            // The sum instead of the mean, in a new tensor.
            return sum_of(bucket.getBuffer().clone(), ranks);
          }});
      const auto gradient = backward_on(accelerator, hook, wrapper);
      EXPECT_TRUE(torch::equal(gradient, torch::full({1, 2}, 6.0F)));
      EXPECT_EQ(
          dtypes,
          std::set<at::ScalarType>{
              wrapper == CommWrapper::none       ? at::kFloat
                  : wrapper == CommWrapper::fp16 ? at::kHalf
                                                 : at::kBFloat16});
    });
  }
}

TEST(BucketHook, IsNotCalledOnOneProcess) {
  const Accelerator accelerator;
  const auto hook = std::make_shared<BucketHook>(BucketHook{
      .reduce = [](c10d::GradBucket&, const BucketContext&) -> Future {
        throw std::logic_error("called");
      }});
  const auto gradient = backward_on(accelerator, hook);
  EXPECT_TRUE(torch::equal(gradient, torch::ones({1, 2})));
}

TEST(BucketHook, MustReturnAMeanOfTheBucketsSize) {
  const auto with =
      [](Future (*reduce)(c10d::GradBucket&, const BucketContext&)) {
        run_on_ranks(2, [&](const WorldOptions& world) {
          const Accelerator accelerator({.world = world});
          backward_on(
              accelerator,
              std::make_shared<BucketHook>(BucketHook{.reduce = reduce}));
        });
      };
  expect_error<ConfigError>(
      [&] {
        with([](c10d::GradBucket&, const BucketContext&) { return Future(); });
      },
      "must return a future");
  expect_error<ConfigError>(
      [&] {
        with([](c10d::GradBucket&, const BucketContext&) {
          return completed(at::zeros({5}));
        });
      },
      "holds 5 elements of Float, but must hold a tensor of 2");
  expect_error<ConfigError>(
      [&] {
        with([](c10d::GradBucket& bucket, const BucketContext&) {
          return completed(bucket.getBuffer().to(at::kDouble));
        });
      },
      "of Double");
  expect_error<std::logic_error>(
      [&] {
        with([](c10d::GradBucket&, const BucketContext&) -> Future {
          throw std::logic_error("my own mistake");
        });
      },
      "my own mistake");
}

TEST(BucketHook, RefusesOptionsThatContradict) {
  const auto make = [](const ReplicateOptions& options) {
    Accelerator accelerator({.parallel = {.replicate_options = options}});
  };
  ReplicateOptions both, empty, half;
  const auto reduce = [](c10d::GradBucket& bucket, const BucketContext&) {
    return completed(bucket.getBuffer());
  };
  both.bucket_hook = std::make_shared<BucketHook>(BucketHook{reduce});
  both.comm_hook = CommHook::fp16;
  expect_error<ConfigError>([&] { make(both); }, "leave one of them out");
  empty.bucket_hook = std::make_shared<BucketHook>();
  expect_error<ConfigError>([&] { make(empty); }, "`reduce`");
  half.bucket_hook = std::make_shared<BucketHook>(
      BucketHook{.reduce = reduce, .state_dict = [] { return StateDict(); }});
  expect_error<ConfigError>([&] { make(half); }, "load_state_dict");
}

TEST(BucketHook, SavesItsStateOnEachRank) {
  const testing::TemporaryDirectory directory;
  run_on_ranks(2, [&](const WorldOptions& world) {
    const Accelerator accelerator({.world = world});
    std::int64_t state = 10 * accelerator.process_index();
    const auto hook = std::make_shared<BucketHook>(BucketHook{
        .reduce =
            [&](c10d::GradBucket& bucket, const BucketContext& ranks) {
              ++state;
              return sum_of(bucket.getBuffer(), ranks);
            },
        .state_dict = [&] { return StateDict{{"calls", state}}; },
        .load_state_dict =
            [&](const StateDict& saved) {
              state = saved.get<std::int64_t>("calls");
            }});
    backward_on(accelerator, hook);
    accelerator.save_state(directory / "checkpoint");
    const std::int64_t saved = state;
    EXPECT_EQ(saved, 10 * accelerator.process_index() + 1);
    state = -1;
    accelerator.load_state(directory / "checkpoint");
    EXPECT_EQ(state, saved);
  });
}

}  // namespace bucket_hook_test
}  // namespace accelerate
