// Each rank uses different parameters in each micro-step, and ends with the
// weights of one process that computes everything.
#include <random>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"

namespace accelerate {
namespace unused_parameters_test {

using testing::run_on_ranks;

constexpr int kBranches = 4;
constexpr int kSteps = 7;

// One layer that is always used, and branches selected by a bit mask.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < kBranches; ++i)
      branches->push_back(torch::nn::Linear(3, 4));
    register_module("branches", branches);
    const torch::NoGradGuard no_grad;
    std::int64_t seed = 0;
    for (auto& parameter : parameters()) {
      const auto values = torch::arange(parameter.numel(), torch::kFloat) +
          static_cast<double>(++seed);
      parameter.copy_(torch::sin(values).view_as(parameter));
    }
  }
  torch::Tensor forward(const torch::Tensor& x, unsigned used) {
    const torch::Tensor h = torch::tanh(trunk(x));
    torch::Tensor y = h.sum(1, true).expand({x.size(0), 4});
    for (int i = 0; i < kBranches; ++i) {
      if ((used >> i & 1U) != 0)
        y = y +
            branches[static_cast<std::size_t>(i)]
                ->as<torch::nn::Linear>()
                ->forward(h);
    }
    return y;
  }
  torch::nn::Linear trunk = register_module("trunk", torch::nn::Linear(5, 3));
  torch::nn::ModuleList branches;
};
TORCH_MODULE(Net);

enum class ZeroGrad { to_none, to_zero, never };

struct Case {
  unsigned seed = 0;
  /// Number of steps per rank; they differ only in a join.
  std::vector<int> steps = {};
  int window = 1;
  ZeroGrad zero_grad = ZeroGrad::to_none;
  ReplicateOptions replicate = {};
  double tolerance = 1e-5;

  [[nodiscard]] bool joins() const {
    return std::adjacent_find(
               steps.begin(), steps.end(), std::not_equal_to<>()) !=
        steps.end();
  }
};

unsigned mask_of(const Case& setup, int rank, int step, int micro_step) {
  std::seed_seq seed{
      setup.seed,
      static_cast<unsigned>(rank),
      static_cast<unsigned>(step),
      static_cast<unsigned>(micro_step)};
  std::mt19937 random(seed);
  // In some steps, few ranks use more than the trunk.
  const unsigned some = random() % 16;
  return random() % 3 == 0 ? 0 : some;
}

torch::Tensor loss_of(const torch::Tensor& output) {
  return output.pow(2).mean();
}

torch::Tensor batch_of(int rank, int step, int micro_step) {
  return torch::cos(
             torch::arange(10, torch::kFloat) + 1.7 * rank + 0.3 * step +
             0.9 * micro_step)
      .view({2, 5});
}

template <class Optimizer>
void drop_gradients(Optimizer& optimizer, ZeroGrad how) {
  if (how != ZeroGrad::never) optimizer.zero_grad(how == ZeroGrad::to_none);
}

torch::optim::SGD make_sgd(torch::nn::Module& net) {
  return torch::optim::SGD(
      net.parameters(), torch::optim::SGDOptions(0.02).momentum(0.5));
}

torch::Tensor flat(const torch::nn::Module& net) {
  return torch::nn::utils::parameters_to_vector(net.parameters()).detach();
}

torch::Tensor train_alone(const Case& setup) {
  Net net;
  auto sgd = make_sgd(*net);
  const int ranks = static_cast<int>(setup.steps.size());
  const int steps = *std::max_element(setup.steps.begin(), setup.steps.end());
  for (int step = 0; step < steps; ++step) {
    for (int rank = 0; rank < ranks; ++rank) {
      if (step >= setup.steps[static_cast<std::size_t>(rank)]) continue;
      for (int i = 0; i < setup.window; ++i) {
        const auto output = net->forward(
            batch_of(rank, step, i), mask_of(setup, rank, step, i));
        (loss_of(output) / setup.window / ranks).backward();
      }
    }
    sgd.step();
    drop_gradients(sgd, setup.zero_grad);
  }
  return flat(*net);
}

std::vector<torch::Tensor> train_on_ranks(const Case& setup) {
  std::vector<torch::Tensor> ends(setup.steps.size());
  run_on_ranks(
      static_cast<int>(setup.steps.size()), [&](const WorldOptions& world) {
        Accelerator accelerator(
            {.gradient_accumulation_steps = setup.window,
             .parallel = {.replicate_options = setup.replicate},
             .world = world});
        Net net;
        auto sgd = make_sgd(*net);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const int rank = accelerator.process_index();
        const int steps = setup.steps[static_cast<std::size_t>(rank)];
        const auto train = [&, &model = model, &optimizer = optimizer] {
          for (int step = 0; step < steps; ++step) {
            for (int i = 0; i < setup.window; ++i) {
              const auto micro_step = accelerator.accumulate(model);
              accelerator.backward(loss_of(model(
                  batch_of(rank, step, i), mask_of(setup, rank, step, i))));
              optimizer.step();
              drop_gradients(optimizer, setup.zero_grad);
            }
          }
        };
        if (setup.joins()) {
          accelerator.join_uneven_inputs(train);
        } else {
          train();
        }
        ends[static_cast<std::size_t>(rank)] = flat(*net);
      });
  return ends;
}

void expect_parity(const Case& setup) {
  const torch::Tensor alone = train_alone(setup);
  const std::vector<torch::Tensor> ends = train_on_ranks(setup);
  for (const torch::Tensor& end : ends) {
    EXPECT_TRUE(torch::equal(end, ends[0]));
    EXPECT_LT((end - alone).abs().max().item<double>(), setup.tolerance);
  }
}

ReplicateOptions finding_unused() {
  ReplicateOptions options;
  options.find_unused_parameters = true;
  return options;
}

std::shared_ptr<BucketHook> averaging_hook() {
  return std::make_shared<BucketHook>(BucketHook{
      .reduce = [](c10d::GradBucket& bucket, const BucketContext& ranks) {
        bucket.getBufferRef().div_(ranks.divisor);
        std::vector<at::Tensor> tensors{bucket.getBuffer()};
        return ranks.process_group.allreduce(tensors)->getFuture();
      }});
}

// A random choice of all the settings that matter for usage patterns.
Case random_case(unsigned seed, bool joins) {
  std::mt19937 random(seed);
  Case setup{.seed = seed};
  setup.steps.assign(2 + random() % 3, kSteps);
  if (joins) {
    for (int& steps : setup.steps) steps = static_cast<int>(random() % kSteps);
    setup.steps.back() = kSteps;
    setup.steps.front() = 2;
  }
  setup.window = 1 + static_cast<int>(random() % 3);
  setup.replicate = finding_unused();
  if (random() % 2 == 0) {
    setup.replicate.bucket_bytes = 64;
    setup.replicate.first_bucket_bytes = 32;
  }
  setup.replicate.gradient_as_bucket_view = random() % 2 == 0;
  // After a join, ranks do not share gradients.
  if (!joins) setup.zero_grad = static_cast<ZeroGrad>(random() % 3);
  switch (random() % 4) {
    case 0:
      setup.replicate.comm_hook = CommHook::fp16;
      setup.tolerance = 5e-3;
      break;
    case 1:
      setup.replicate.bucket_hook = averaging_hook();
      break;
    default:
      break;
  }
  return setup;
}

std::string describe(const Case& setup) {
  std::ostringstream out;
  out << "seed " << setup.seed << ", " << setup.steps.size()
      << " ranks, window " << setup.window << ", zero_grad "
      << static_cast<int>(setup.zero_grad) << ", hook "
      << static_cast<int>(setup.replicate.comm_hook)
      << (setup.replicate.bucket_hook ? ", own hook" : "")
      << (setup.replicate.gradient_as_bucket_view ? ", views" : "")
      << ", buckets of " << setup.replicate.bucket_bytes;
  return out.str();
}

TEST(UnusedParameters, MayChangeFromStepToStepAndRankToRank) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    const Case setup = random_case(seed, /*joins=*/false);
    SCOPED_TRACE(describe(setup));
    expect_parity(setup);
  }
}

TEST(UnusedParameters, MayChangeWhileRanksJoin) {
  for (unsigned seed = 100; seed < 112; ++seed) {
    const Case setup = random_case(seed, /*joins=*/true);
    SCOPED_TRACE(describe(setup));
    expect_parity(setup);
  }
}

// The pattern that crashed LibTorch's reducer without a logger.
TEST(UnusedParameters, MayBeUsedLaterOnOneRank) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator(
        {.parallel = {.replicate_options = finding_unused()}, .world = world});
    Net net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto first = [&] { return net->branches[0]->parameters()[0]; };
    for (int step = 0; step < 3; ++step) {
      const bool uses = accelerator.is_main_process() && step == 1;
      accelerator.backward(
          loss_of(model(batch_of(0, step, 0), uses ? 1U : 0U)));
      EXPECT_EQ(first().grad().defined(), step == 1);
      optimizer.step();
      optimizer.zero_grad();
    }
  });
}

// Outputs need not be visitable, since unused parameters are found from the
// loss.
struct Opaque {
  torch::Tensor value;
};
struct OpaqueNetImpl : torch::nn::Module {
  Opaque forward(const torch::Tensor& x) { return {used(x)}; }
  torch::nn::Linear used = register_module("used", torch::nn::Linear(2, 1));
  torch::nn::Linear spare = register_module("spare", torch::nn::Linear(2, 1));
};
TORCH_MODULE(OpaqueNet);

TEST(UnusedParameters, AreFoundWhateverTheModelReturns) {
  run_on_ranks(2, [](const WorldOptions& world) {
    Accelerator accelerator(
        {.parallel = {.replicate_options = finding_unused()}, .world = world});
    OpaqueNet net;
    auto model = accelerator.prepare(net);
    const auto x =
        torch::full({1, 2}, accelerator.process_index() + 1, torch::kFloat);
    accelerator.backward(model(x).value.sum());
    EXPECT_EQ(net->used->weight.grad()[0][0].item<float>(), 1.5F);
    EXPECT_FALSE(net->spare->weight.grad().defined());
  });
}

}  // namespace unused_parameters_test
}  // namespace accelerate
