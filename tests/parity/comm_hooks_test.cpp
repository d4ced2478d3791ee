// Compressed gradients: what arrives, what is kept, and how it affects
// training.
#include <map>

#include <accelerate/accelerate.h>

#include "comm/group/group_impl.h"
#include "parallel/replicate/gradient_reduction.h"
#include "support/expect_error.h"
#include "support/run_on_ranks.h"

namespace accelerate {
namespace comm_hooks_test {

using testing::expect_error;
using testing::run_in_worlds;
using testing::run_on_ranks;

// Named parameters, with their gradients in one bucket or in one bucket each.
class Buckets {
 public:
  explicit Buckets(bool is_one_each) : is_one_each_(is_one_each) {
    add("wide", {12, 20});
    add("bias", {12});
    add("conv", {6, 4, 3, 3});
    add("empty", {0, 5});
  }

  detail::NameOf name_of() const {
    return [this](const at::Tensor& tensor) -> const std::string& {
      return names_.at(tensor.unsafeGetTensorImpl());
    };
  }

  // Returns the reduced gradients.
  std::vector<at::Tensor> reduce(
      detail::GradientReduction& reduction,
      const std::vector<at::Tensor>& gradients,
      const Group& group) {
    std::vector<std::vector<std::size_t>> members;
    if (is_one_each_) {
      for (std::size_t i = 0; i < parameters_.size(); ++i)
        members.push_back({i});
    } else {
      members.push_back({3, 2, 1, 0});
    }
    std::vector<at::Tensor> results(parameters_.size());
    std::vector<detail::FutureTensor> futures;
    const detail::ReductionContext context{
        group.impl()->process_group, static_cast<double>(group.size())};
    for (std::size_t index = 0; index < members.size(); ++index) {
      std::vector<at::Tensor> flat, parameters;
      std::vector<std::size_t> offsets, lengths;
      std::vector<c10::IntArrayRef> sizes;
      std::size_t begin = 0;
      for (const std::size_t i : members[index]) {
        flat.push_back(gradients[i].reshape(-1));
        parameters.push_back(parameters_[i]);
        offsets.push_back(begin);
        lengths.push_back(static_cast<std::size_t>(gradients[i].numel()));
        sizes.push_back(parameters_[i].sizes());
        begin += lengths.back();
      }
      at::Tensor buffer = at::cat(flat);
      c10d::GradBucket bucket(
          index,
          members.size(),
          buffer,
          offsets,
          lengths,
          sizes,
          parameters,
          std::nullopt);
      futures.push_back(reduction.reduce(bucket, context));
      for (std::size_t k = 0; k < members[index].size(); ++k) {
        const std::size_t i = members[index][k];
        results[i] = buffer
                         .narrow(
                             0,
                             static_cast<std::int64_t>(offsets[k]),
                             gradients[i].numel())
                         .view(sizes[k]);
      }
    }
    for (const auto& future : futures) future->waitAndThrow();
    return results;
  }

  std::vector<at::Tensor> random_gradients(std::uint64_t seed) const {
    const at::Generator generator = at::detail::createCPUGenerator(seed);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) {
      gradients.push_back(at::randn(parameter.sizes(), generator));
    }
    return gradients;
  }

 private:
  void add(const std::string& name, at::IntArrayRef sizes) {
    parameters_.push_back(at::zeros(sizes));
    names_[parameters_.back().unsafeGetTensorImpl()] = name;
  }

  bool is_one_each_;
  std::vector<at::Tensor> parameters_;
  std::map<const c10::TensorImpl*, std::string> names_;
};

std::vector<at::Tensor> mean_of(const Buckets& buckets, int step, int ranks) {
  std::vector<at::Tensor> mean =
      buckets.random_gradients(static_cast<std::uint64_t>(step * 10));
  for (int rank = 1; rank < ranks; ++rank) {
    const auto other =
        buckets.random_gradients(static_cast<std::uint64_t>(step * 10 + rank));
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += other[i];
  }
  for (at::Tensor& tensor : mean) tensor /= ranks;
  return mean;
}

void expect_close(
    const std::vector<at::Tensor>& found,
    const std::vector<at::Tensor>& expected,
    double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], expected[i], tolerance, tolerance))
        << "gradient " << i << " differs by "
        << (found[i] - expected[i]).abs().max().item<double>();
  }
}

constexpr CommHook kHooks[] = {
    CommHook::none,
    CommHook::fp16,
    CommHook::bf16,
    CommHook::power_sgd,
    CommHook::batched_power_sgd};

ReplicateOptions with_hook(CommHook hook, const PowerSGDOptions& power = {}) {
  ReplicateOptions options;
  options.comm_hook = hook;
  options.power_sgd = power;
  return options;
}

// Factors of full rank lose nothing.
TEST(CommHook, AveragesOverTheRanks) {
  for (const CommHook hook : kHooks) {
    for (const CommWrapper wrapper :
         {CommWrapper::none, CommWrapper::bf16, CommWrapper::fp16}) {
      if (hook == CommHook::none && wrapper != CommWrapper::none) continue;
      run_in_worlds(3, [&](const World& world) {
        Buckets buckets(true);
        ReplicateOptions options = with_hook(
            hook,
            {.matrix_approximation_rank = 100,
             .start_power_sgd_iter = 1,
             .min_compression_rate = 1e-3});
        options.comm_wrapper = wrapper;
        const auto reduction =
            detail::make_reduction(options, buckets.name_of());
        const bool is_coarse =
            hook == CommHook::bf16 || wrapper == CommWrapper::bf16;
        const bool is_half =
            hook == CommHook::fp16 || wrapper == CommWrapper::fp16;
        const double tolerance = is_coarse ? 5e-2 : is_half ? 1e-2 : 1e-5;
        for (int step = 0; step < 4; ++step) {
          const auto mine = buckets.random_gradients(
              static_cast<std::uint64_t>(step * 10 + world.rank()));
          expect_close(
              buckets.reduce(*reduction, mine, world.group()),
              mean_of(buckets, step, world.size()),
              tolerance);
        }
      });
    }
  }
}

TEST(PowerSgd, SendsPlainGradientsBeforeItsStart) {
  run_in_worlds(2, [](const World& world) {
    Buckets buckets(false);
    const auto reduction = detail::make_reduction(
        with_hook(
            CommHook::power_sgd,
            {.start_power_sgd_iter = 2, .min_compression_rate = 1}),
        buckets.name_of());
    std::vector<double> errors;
    for (int step = 0; step < 3; ++step) {
      const auto mine = buckets.random_gradients(
          static_cast<std::uint64_t>(step * 10 + world.rank()));
      const auto found = buckets.reduce(*reduction, mine, world.group());
      const auto expected = mean_of(buckets, step, world.size());
      errors.push_back((found[0] - expected[0]).abs().max().item<double>());
      EXPECT_TRUE(at::allclose(found[1], expected[1]))
          << "vectors are never compressed";
    }
    EXPECT_LT(errors[1], 1e-6);
    EXPECT_GT(errors[2], 1e-2);
  });
}

// Later steps send what one step left out, so sums agree up to the remainder.
TEST(PowerSgd, LosesNothingForGood) {
  for (const CommHook hook :
       {CommHook::power_sgd, CommHook::batched_power_sgd}) {
    for (const double epsilon : {0.0, 1e-8}) {
      run_in_worlds(2, [&](const World& world) {
        Buckets buckets(false);
        const auto reduction = detail::make_reduction(
            with_hook(
                hook,
                {.matrix_approximation_rank = 2,
                 .start_power_sgd_iter = 0,
                 .min_compression_rate = 1,
                 .orthogonalization_epsilon = epsilon}),
            buckets.name_of());
        std::vector<at::Tensor> sent, wanted;
        for (int step = 0; step < 5; ++step) {
          const auto mine = buckets.random_gradients(
              static_cast<std::uint64_t>(step * 10 + world.rank()));
          const auto found = buckets.reduce(*reduction, mine, world.group());
          const auto mean = mean_of(buckets, step, world.size());
          for (std::size_t i = 0; i < found.size(); ++i) {
            if (step == 0) {
              sent.push_back(found[i].clone());
              wanted.push_back(mean[i].clone());
            } else {
              sent[i] += found[i];
              wanted[i] += mean[i];
            }
          }
        }
        const StateDict left = reduction->state_dict().get<StateDict>("errors");
        const char* const names[] = {"wide", "bias", "conv"};
        for (std::size_t i = 0; i < 3; ++i) {
          if (!left.contains(names[i])) continue;
          at::Tensor error = left.get<at::Tensor>(names[i]).clone();
          world.group().all_reduce(error);
          EXPECT_TRUE(at::allclose(
              sent[i] + error / world.size(), wanted[i], 1e-4, 1e-4))
              << names[i];
        }
        EXPECT_TRUE(left.contains("wide"));
      });
    }
  }
}

// The results of three steps with one bucket, and the state after them.
struct Compressed {
  std::vector<at::Tensor> results;
  StateDict state;
};

Compressed compress(const PowerSGDOptions& options) {
  Compressed found;
  run_in_worlds(2, [&](const World& world) {
    Buckets buckets(false);
    const auto reduction = detail::make_reduction(
        with_hook(CommHook::power_sgd, options), buckets.name_of());
    std::vector<at::Tensor> results;
    for (int step = 0; step < 3; ++step) {
      const auto mine = buckets.random_gradients(
          static_cast<std::uint64_t>(step * 10 + world.rank()));
      results.push_back(
          buckets.reduce(*reduction, mine, world.group())[0].clone());
    }
    if (world.rank() == 0) found = {results, reduction->state_dict()};
  });
  return found;
}

TEST(PowerSgd, DoesWhatEachOptionSays) {
  const PowerSGDOptions base{
      .start_power_sgd_iter = 0, .min_compression_rate = 1};
  const Compressed expected = compress(base);
  const auto error_of = [](const Compressed& found, int step) {
    const at::Tensor mean = mean_of(Buckets(false), step, 2)[0];
    return (found.results[static_cast<std::size_t>(step)] - mean)
        .norm()
        .item<double>();
  };
  const auto names = [](const Compressed& found, const char* key) {
    return found.state.get<StateDict>(key).values().size();
  };
  // The matrices "wide" and "conv"; the vector is never compressed.
  EXPECT_EQ(names(expected, "errors"), 2u);
  EXPECT_EQ(names(expected, "factors"), 2u);
  EXPECT_TRUE(torch::equal(compress(base).results[2], expected.results[2]));

  PowerSGDOptions options = base;
  options.matrix_approximation_rank = 4;
  EXPECT_LT(error_of(compress(options), 0), error_of(expected, 0) * 0.9);
  options = base;
  options.start_power_sgd_iter = 2;
  EXPECT_LT(error_of(compress(options), 1), 1e-5);
  EXPECT_GT(error_of(compress(options), 2), 1);
  options = base;
  // 12 x 20 elements become 32, and 6 x 36 become 42.
  options.min_compression_rate = 6;
  EXPECT_EQ(names(compress(options), "errors"), 1u);
  options = base;
  options.use_error_feedback = false;
  EXPECT_EQ(names(compress(options), "errors"), 0u);
  options = base;
  options.warm_start = false;
  EXPECT_EQ(names(compress(options), "factors"), 0u);
  EXPECT_FALSE(torch::equal(compress(options).results[2], expected.results[2]));
  options = base;
  options.orthogonalization_epsilon = 10;
  // Factors that are too small give a result that is too small.
  EXPECT_LT(
      compress(options).results[0].norm().item<double>(),
      expected.results[0].norm().item<double>() * 0.5);
  options = base;
  options.random_seed = 1;
  EXPECT_FALSE(torch::equal(compress(options).results[0], expected.results[0]));
}

TEST(PowerSgd, ResumesFromItsStateEvenInOtherBuckets) {
  run_in_worlds(2, [](const World& world) {
    const ReplicateOptions options = with_hook(
        CommHook::power_sgd,
        {.start_power_sgd_iter = 1, .min_compression_rate = 1});
    Buckets buckets(false);
    const auto uninterrupted =
        detail::make_reduction(options, buckets.name_of());
    Buckets others(true);
    const auto resumed = detail::make_reduction(options, others.name_of());
    for (int step = 0; step < 6; ++step) {
      if (step == 3) resumed->load_state_dict(uninterrupted->state_dict());
      const auto mine = buckets.random_gradients(
          static_cast<std::uint64_t>(step * 10 + world.rank()));
      const auto expected = buckets.reduce(*uninterrupted, mine, world.group());
      if (step < 3) continue;
      expect_close(
          others.reduce(*resumed, mine, world.group()), expected, 1e-5);
    }
  });
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return fc2(torch::tanh(fc1(x)));
  }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(6, 16));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(16, 12));
};
TORCH_MODULE(Net);

// Returns the final loss; the test fails if it differs between ranks.
double train(int num_ranks, const ReplicateOptions& options) {
  torch::manual_seed(1);
  const auto inputs = torch::randn({48, 6});
  const auto targets = torch::tanh(inputs.matmul(torch::randn({6, 12})));
  Net first;
  std::vector<double> losses(static_cast<std::size_t>(num_ranks));
  std::vector<torch::Tensor> weights(losses.size());
  run_on_ranks(num_ranks, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.parallel = {.replicate_options = options}, .world = world});
    Net net;
    {
      const torch::NoGradGuard no_grad;
      auto from = first->named_parameters();
      for (auto& item : net->named_parameters())
        item.value().copy_(from[item.key()]);
    }
    torch::optim::SGD sgd(net->parameters(), 0.5);
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        sgd,
        DataLoader(
            TensorDataset(inputs, targets),
            {.batch_size = 12, .split_batches = true}));
    for (int epoch = 0; epoch < 25; ++epoch) {
      for (auto& [x, y] : loader) {
        optimizer.zero_grad();
        accelerator.backward(torch::mse_loss(model(x), y));
        optimizer.step();
      }
    }
    const torch::NoGradGuard no_grad;
    const auto rank = static_cast<std::size_t>(accelerator.process_index());
    losses[rank] =
        torch::mse_loss(net->forward(inputs), targets).item<double>();
    weights[rank] =
        torch::nn::utils::parameters_to_vector(net->parameters()).detach();
  });
  for (const auto& of_rank : weights)
    EXPECT_TRUE(torch::equal(of_rank, weights[0]));
  return losses[0];
}

TEST(CommHook, TrainsAsWellAsPlainAveraging) {
  const double plain = train(1, {});
  for (const CommHook hook : kHooks) {
    ReplicateOptions options = with_hook(
        hook,
        {.matrix_approximation_rank = 2,
         .start_power_sgd_iter = 5,
         .min_compression_rate = 1.5});
    options.bucket_bytes = 512;
    options.first_bucket_bytes = 128;
    for (const int ranks : {2, 3}) {
      options.gradient_as_bucket_view = ranks == 3;
      EXPECT_LT(train(ranks, options), plain * 1.1) << static_cast<int>(hook);
    }
  }
}

TEST(CommHook, RefusesInvalidOptions) {
  const auto make = [](const ReplicateOptions& options) {
    run_on_ranks(2, [&](const WorldOptions& world) {
      Accelerator accelerator(
          {.parallel = {.replicate_options = options}, .world = world});
    });
  };
  ReplicateOptions wrapper_alone;
  wrapper_alone.comm_wrapper = CommWrapper::fp16;
  expect_error<ConfigError>(
      [&] { make(wrapper_alone); }, "without a comm_hook");
  expect_error<ConfigError>(
      [&] {
        make(with_hook(CommHook::power_sgd, {.matrix_approximation_rank = 0}));
      },
      "but they are 0, ");
}

}  // namespace comm_hooks_test
}  // namespace accelerate
