// Norms, clipping, loss scaling, accumulation and averaging of gradients of
// every dtype, against sums in double precision.
#include <cmath>
#include <vector>

#include <accelerate/accelerate.h>

#include "support/run_on_ranks.h"
#include "support/table_sizes.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace gradient_table_test {

using testing::run_on_ranks;
using testing::TemporaryDirectory;
using torch::Tensor;
namespace nn = torch::nn;

constexpr at::ScalarType kDtypes[] = {
    at::kFloat,
    at::kDouble,
    at::kBFloat16,
    at::kHalf,
    at::kComplexFloat,
    at::kComplexDouble};

double epsilon_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return 0x1p-7;
    case at::kHalf:
      return 0x1p-10;
    case at::kFloat:
    case at::kComplexFloat:
      return 0x1p-23;
    default:
      return 0x1p-52;
  }
}

bool is_double(at::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kComplexDouble;
}

Tensor values(at::IntArrayRef sizes, double phase, at::ScalarType dtype) {
  const Tensor places =
      torch::arange(c10::multiply_integers(sizes), torch::kDouble) + phase;
  const Tensor real = torch::sin(places).view(sizes);
  return at::isComplexType(dtype)
      ? torch::complex(real, torch::cos(places * 1.3).view(sizes)).to(dtype)
      : real.to(dtype);
}

// Parameters with gradients of all sizes and memory orders, some of which are
// views whose conjugation or sign is still due.
std::vector<Tensor> with_gradients(at::ScalarType dtype) {
  std::vector<Tensor> gradients;
  double phase = 0;
  for (std::int64_t size = 1; size <= testing::largest_table_size(); ++size)
    gradients.push_back(values({size}, phase += 0.1, dtype));
  for (const std::int64_t size : {1000, 4099})
    gradients.push_back(values({size}, phase += 0.1, dtype));
  gradients.push_back(values({}, 5, dtype));
  gradients.push_back(values({0, 5}, 6, dtype));
  gradients.push_back(values({5, 7}, 6.1, dtype).t());
  gradients.push_back(values({5, 40}, 6.2, dtype).narrow(1, 2, 33));
  gradients.push_back(values({66}, 6.3, dtype).slice(0, 0, 66, 2));
  gradients.push_back(values({35}, 6.4, dtype).narrow(0, 1, 34));
  gradients.push_back(
      at::isComplexType(dtype) ? values({5, 6}, 6.5, dtype).conj()
                               : torch::_neg_view(values({37}, 6.6, dtype)));
  std::vector<Tensor> parameters;
  for (const Tensor& gradient : gradients) {
    Tensor parameter = torch::zeros(gradient.sizes(), dtype).requires_grad_();
    parameter.mutable_grad() = gradient;
    parameters.push_back(parameter);
  }
  return parameters;
}

Tensor wide(const Tensor& tensor) {
  const Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  return plain.to(
      plain.is_complex() ? torch::kComplexDouble : torch::kDouble,
      /*non_blocking=*/false,
      /*copy=*/true);
}

Tensor parts(const Tensor& tensor) {
  return tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
}

std::vector<Tensor> wide_gradients(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : parameters)
    gradients.push_back(wide(parameter.grad()));
  return gradients;
}

void expect_gradients(
    const std::vector<Tensor>& parameters,
    const std::vector<Tensor>& expected) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const double bound = 4 * epsilon_of(parameters[i].scalar_type());
    const Tensor error = parts(wide(parameters[i].grad()) - expected[i]).abs();
    // Products of small numbers are none in fp16.
    const Tensor allowed = bound * parts(expected[i]).abs() +
        (parameters[i].scalar_type() == at::kHalf ? 1e-7 : 1e-300);
    EXPECT_TRUE((error <= allowed).all().item<bool>())
        << parameters[i].scalar_type() << " " << parameters[i].sizes();
  }
}

double norm_by_hand(const std::vector<Tensor>& gradients, double p) {
  double sum = 0;
  for (const Tensor& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    const Tensor sizes = gradient.abs();
    sum = std::isinf(p) ? std::max(sum, sizes.max().item<double>())
                        : sum + sizes.pow(p).sum().item<double>();
  }
  return std::isinf(p) ? sum : std::pow(sum, 1 / p);
}

WorldOptions alone() { return {.rank = 0, .size = 1, .device = at::kCPU}; }

void expect_clipping(const std::vector<Tensor>& parameters, double p) {
  const Accelerator accelerator({.world = alone()});
  const std::vector<Tensor> before = wide_gradients(parameters);
  const double expected = norm_by_hand(before, p);
  const double bound = 0.37 * expected;
  const Tensor norm =
      accelerator.clip_grad_norm_(parameters, bound, {.norm_type = p});
  bool has_double = false, has_single = false;
  for (const Tensor& parameter : parameters)
    (is_double(parameter.scalar_type()) ? has_double : has_single) = true;
  EXPECT_EQ(norm.scalar_type(), has_double ? at::kDouble : at::kFloat);
  const double tolerance = has_single ? 1e-5 : 1e-13;
  EXPECT_NEAR(norm.item<double>() / expected, 1, tolerance);
  std::vector<Tensor> clipped;
  for (const Tensor& gradient : before)
    clipped.push_back(gradient * (bound / (norm.item<double>() + 1e-6)));
  expect_gradients(parameters, clipped);
}

TEST(GradientTable, NormsAreClippedInEveryDtype) {
  for (const double p : {2.0, 1.0, 0.5, 3.0, double(INFINITY)}) {
    SCOPED_TRACE(p);
    std::vector<Tensor> all;
    for (const at::ScalarType dtype : kDtypes) {
      SCOPED_TRACE(c10::toString(dtype));
      expect_clipping(with_gradients(dtype), p);
      for (const Tensor& parameter : with_gradients(dtype))
        all.push_back(parameter);
    }
    expect_clipping(all, p);
  }
}

TEST(GradientTable, ValuesAreClippedInEveryDtype) {
  const Accelerator accelerator({.world = alone()});
  for (const at::ScalarType dtype : kDtypes) {
    SCOPED_TRACE(c10::toString(dtype));
    const std::vector<Tensor> parameters = with_gradients(dtype);
    std::vector<Tensor> expected = wide_gradients(parameters);
    for (const Tensor& gradient : expected) parts(gradient).clamp_(-0.3, 0.3);
    accelerator.clip_grad_value_(parameters, 0.3);
    expect_gradients(parameters, expected);
  }
}

// The gradients of a scaled loss have been multiplied already.
TEST(GradientTable, LossesAreScaledInEveryDtype) {
  for (const at::ScalarType dtype : kDtypes) {
    if (dtype == at::kHalf) continue;  // refused
    SCOPED_TRACE(c10::toString(dtype));
    // A power of two would not round.
    const GradScaler scaler({.init_scale = 3.7}, at::kCPU, {});
    const double scale = scaler.get_scale();
    const std::vector<Tensor> parameters = with_gradients(dtype);
    torch::optim::SGD sgd(parameters, 1.0);
    std::vector<Tensor> scaled = wide_gradients(parameters), unscaled;
    for (const Tensor& gradient : scaled) unscaled.push_back(gradient / scale);
    scaler.unscale_(sgd);
    EXPECT_FALSE(scaler.found_inf(sgd));
    expect_gradients(parameters, unscaled);
    scaler.undo_unscale_(sgd);
    expect_gradients(parameters, scaled);
    const Tensor loss = values({}, 1, c10::toRealValueType(dtype));
    EXPECT_NEAR(
        scaler.scale(loss).item<double>(),
        loss.item<double>() * scale,
        4 * epsilon_of(dtype));
  }
}

TEST(GradientTable, NumbersThatAreNotFiniteAreFoundInEveryPlace) {
  for (const at::ScalarType dtype : kDtypes) {
    if (dtype == at::kHalf) continue;
    SCOPED_TRACE(c10::toString(dtype));
    for (const double what :
         {double(INFINITY), -double(INFINITY), double(NAN)}) {
      for (const std::int64_t size : {1, 7, 16, 33, 40}) {
        for (const std::int64_t place : {std::int64_t{0}, size / 2, size - 1}) {
          Tensor parameter = torch::zeros({size}, dtype).requires_grad_();
          Tensor gradient = torch::ones({size}, dtype);
          const Tensor real = parts(gradient).view({size, -1});
          real[place][real.size(1) - 1] = what;
          parameter.mutable_grad() = gradient;
          torch::optim::SGD sgd({parameter}, 1.0);
          const GradScaler scaler({.init_scale = 4}, at::kCPU, {});
          EXPECT_FALSE(scaler.step(sgd)) << size << ", " << place;
          EXPECT_TRUE(scaler.found_inf(sgd));
          EXPECT_EQ(parameter.abs().sum().item<double>(), 0);
        }
      }
    }
  }
}

// A net of parameters of one dtype; complex ones are weights of real sums.
struct NetImpl : nn::Module {
  explicit NetImpl(at::ScalarType dtype) {
    first = register_parameter("first", values({7, 5}, 1, dtype));
    second = register_parameter("second", values({5, 3}, 2, dtype));
    register_module("ignored", ignored);
    bias = ignored->register_parameter("bias", values({3}, 3, dtype));
    scale = register_parameter("scale", values({}, 1, dtype));
  }
  Tensor forward(const Tensor& x) {
    const Tensor h = (x.matmul(first)).matmul(second) * scale + bias;
    return h * h.conj();
  }
  Tensor first, second, bias, scale;
  std::shared_ptr<nn::Module> ignored = std::make_shared<nn::Module>();
};
TORCH_MODULE(Net);

Tensor real_mean(const Tensor& output) {
  const Tensor mean = output.mean();
  return mean.is_complex() ? torch::real(mean) : mean;
}

constexpr int kSteps = 3;
constexpr std::int64_t kItems = 12;
// Items of each micro-step of a window, of both ranks together.
constexpr std::int64_t kWindow[] = {6, 2, 4};

Tensor batch(int step, at::ScalarType dtype) {
  return values({kItems, 7}, 10 * step, dtype);
}

struct Training {
  std::string name;
  ParallelOptions parallel = {};
  int num_ranks = 2;
  bool is_scaled = false;
};

std::vector<Tensor> train_alone(at::ScalarType dtype) {
  Net net(dtype);
  torch::optim::SGD sgd(
      net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    real_mean(net(batch(step, dtype))).backward();
    double square = 0;
    for (const Tensor& parameter : net->parameters())
      square += parameter.grad().abs().square().sum().item<double>();
    const torch::NoGradGuard no_grad;
    const double factor = std::min(1.0, 0.5 / (std::sqrt(square) + 1e-6));
    for (const Tensor& parameter : net->parameters())
      parameter.grad().mul_(factor);
    sgd.step();
  }
  return net->parameters();
}

void train_prepared(
    const Accelerator& accelerator,
    const Model<NetImpl>& model,
    const Optimizer& optimizer,
    int step,
    at::ScalarType dtype) {
  std::int64_t begin = 0;
  for (const std::int64_t items : kWindow) {
    const auto scope = accelerator.accumulate(model);
    // Ranks have different numbers of items.
    const int ranks = accelerator.num_processes();
    const std::int64_t own = ranks == 1    ? items
        : accelerator.process_index() == 0 ? items - items / 2 + (items > 2)
                                           : items / 2 - (items > 2);
    const std::int64_t first =
        begin + (accelerator.process_index() == 0 ? 0 : items - own);
    const Tensor x = batch(step, dtype).narrow(0, first, own);
    accelerator.backward(real_mean(model(x)), {.num_items = own});
    begin += items;
    if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(model, 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
}

void expect_training(at::ScalarType dtype, const Training& run) {
  SCOPED_TRACE(run.name + std::string(", ") + c10::toString(dtype));
  const std::vector<Tensor> expected = train_alone(dtype);
  const TemporaryDirectory directory;
  run_on_ranks(run.num_ranks, [&](const WorldOptions& world) {
    const Accelerator accelerator(
        {.mixed_precision = run.is_scaled ? Precision::fp16 : Precision::no,
         .autocast = {.enabled = false},
         .grad_scaler = {.init_scale = 3.7},
         .gradient_accumulation_steps = 3,
         .parallel = run.parallel,
         .world = world});
    Net net(dtype);
    torch::optim::SGD sgd(
        net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < kSteps; ++step) {
      train_prepared(accelerator, model, optimizer, step, dtype);
      // What is saved and loaded is exact, too; the format has no complex128.
      if (step != 1 || dtype == at::kComplexDouble) continue;
      const std::string saved = (directory / "saved").string();
      accelerator.save_state(saved);
      train_prepared(accelerator, model, optimizer, 5, dtype);
      accelerator.load_state(saved);
    }
    const auto full = model.full_parameters();
    const std::vector<Tensor> found = net->parameters();
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double error = (found[i] - expected[i]).abs().max().item<double>();
      EXPECT_LT(error, is_double(dtype) ? 1e-13 : 2e-5) << i;
    }
  });
}

TEST(GradientTable, TrainingIsThatOfOneProcessInEveryDtype) {
  FullyShardedDataParallelOptions sharded, offloaded;
  sharded.ignored_modules = offloaded.ignored_modules = "ignored";
  offloaded.cpu_offload = true;
  ParallelOptions hybrid{.fully_sharded = sharded};
  hybrid.replicate = 2;
  hybrid.shard = 2;
  const std::vector<Training> runs{
      {.name = "one rank", .num_ranks = 1},
      {.name = "replicas"},
      {.name = "scaled", .is_scaled = true},
      {.name = "sharded", .parallel = {.fully_sharded = sharded}},
      {.name = "offloaded", .parallel = {.fully_sharded = offloaded}},
      {.name = "ZeRO-1",
       .parallel = {
           .deepspeed =
               DeepSpeedOptions{.gradient_clipping = 0, .zero_stage = 1}}}};
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble}) {
    for (const Training& run : runs) expect_training(dtype, run);
  }
}

// Hooks that narrow gradients must not lose the imaginary parts.
TEST(GradientTable, CommHooksKeepImaginaryParts) {
  const std::vector<Tensor> expected = train_alone(at::kComplexDouble);
  std::vector<ReplicateOptions> all(6);
  all[0].comm_hook = CommHook::fp16;
  all[1].comm_hook = CommHook::bf16;
  all[2].comm_hook = CommHook::power_sgd;
  all[3].comm_hook = CommHook::batched_power_sgd;
  all[4].comm_hook = CommHook::power_sgd;
  all[4].comm_wrapper = CommWrapper::fp16;
  all[5].comm_hook = CommHook::fp16;
  all[5].comm_wrapper = CommWrapper::bf16;
  for (ReplicateOptions& options : all) {
    options.power_sgd.start_power_sgd_iter = 2;
    options.power_sgd.matrix_approximation_rank = 1;
  }
  FullyShardedDataParallelOptions reduced;
  reduced.mixed_precision_policy =
      MixedPrecisionPolicy{.reduce_dtype = FloatType::bf16};
  for (std::size_t i = 0; i < all.size() + 1; ++i) {
    SCOPED_TRACE(i);
    run_on_ranks(2, [&](const WorldOptions& world) {
      AcceleratorOptions options{
          .gradient_accumulation_steps = 3, .world = world};
      if (i < all.size()) {
        options.parallel.replicate_options = all[i];
      } else {
        options.parallel.fully_sharded = reduced;
      }
      const Accelerator accelerator(options);
      Net net(at::kComplexDouble);
      torch::optim::SGD sgd(
          net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < kSteps; ++step)
        train_prepared(accelerator, model, optimizer, step, at::kComplexDouble);
      const auto full = model.full_parameters();
      const std::vector<Tensor> found = net->parameters();
      for (std::size_t p = 0; p < found.size(); ++p) {
        EXPECT_LT((found[p] - expected[p]).abs().max().item<double>(), 4e-3)
            << p;
      }
    });
  }
}

}  // namespace gradient_table_test
}  // namespace accelerate
