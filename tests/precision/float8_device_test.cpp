// Float8 matrices on an accelerator are multiplied by LibTorch's product, or by
// its emulation.
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "support/counted_operators.h"
#include "support/pretend_device.h"
#include "support/temporary_directory.h"

namespace accelerate {
namespace float8_device_test {

using testing::pretend_device;

// Counts LibTorch's products of float8 matrices on this thread while it lives.
class ProductCount {
 public:
  ProductCount()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&count).scopes(
                {at::RecordScope::FUNCTION}))) {
    num_products_ = 0;
  }
  ~ProductCount() { at::removeCallback(handle_); }
  ProductCount(const ProductCount&) = delete;
  ProductCount& operator=(const ProductCount&) = delete;

  [[nodiscard]] int get() const { return num_products_; }

 private:
  static std::unique_ptr<at::ObserverContext> count(
      const at::RecordFunction& function) {
    if (std::string(function.name()) == "aten::_scaled_mm") ++num_products_;
    return nullptr;
  }

  static inline thread_local int num_products_ = 0;
  at::CallbackHandle handle_;
};

// Number of LibTorch's float8 products in a layer's forward and backward over
// `num_rows` rows, the inner dimension of the weight's gradient.
int products_of(const Float8LinearConfig& config, std::int64_t num_rows) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const Accelerator accelerator(
      {.mixed_precision = Precision::fp8,
       .fp8_recipe =
           AORecipeKwargs{
               .config = config,
               .module_filter_func =
                   [](const std::string&, const torch::nn::Module&) {
                     return true;
                   }},
       // The pretend device has no autocast kernels.
       .autocast = {.enabled = false},
       .world = {.rank = 0, .size = 1, .device = pretend_device()}});
  torch::nn::Linear linear(32, 16);
  auto model = accelerator.prepare(linear);
  const auto x =
      torch::randn({num_rows, 32}).to(pretend_device()).requires_grad_();
  const ProductCount products;
  accelerator.backward(model(x).sum());
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(linear->weight.grad().defined());
  return products.get();
}

TEST(Float8OnDevice, IsMultipliedByLibTorchUnlessEmulationIsAskedFor) {
  EXPECT_EQ(products_of({}, 16), 3);
  EXPECT_EQ(products_of({.emulate = true}, 16), 0);
}

TEST(Float8OnDevice, PadsTheInnerSizeOnRequest) {
  // Five rows are not a multiple of 16, so the gradient of the weight is
  // emulated unless zeros are added.
  EXPECT_EQ(products_of({.pad_inner_dim = false}, 5), 2);
  EXPECT_EQ(products_of({.pad_inner_dim = true}, 5), 3);
}

// A net that is trained with delayed scales; infinities leave scales as they
// are.
struct Delayed {
  explicit Delayed(at::Device device)
      : accelerator(
            {.mixed_precision = Precision::fp8,
             .fp8_recipe =
                 TERecipeKwargs{
                     .interval = 2,
                     .amax_history_len = 3,
                     .amax_compute_algo = "max"},
             .autocast = {.enabled = false},
             .world = {.rank = 0, .size = 1, .device = device}}) {
    torch::manual_seed(5);
    net = torch::nn::Sequential(
        torch::nn::Linear(32, 16),
        torch::nn::ReLU(),
        torch::nn::Linear(16, 16),
        torch::nn::Linear(16, 16));
    sgd.emplace(net->parameters(), torch::optim::SGDOptions(0.01));
    prepared.emplace(accelerator.prepare(net, *sgd));
  }
  void step(const torch::Tensor& x) {
    const auto& [model, optimizer] = *prepared;
    accelerator.backward(model(x).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  [[nodiscard]] std::vector<torch::Tensor> weights() const {
    std::vector<torch::Tensor> found;
    for (const auto& each : net->parameters())
      found.push_back(each.detach().cpu());
    return found;
  }
  [[nodiscard]] torch::Tensor batch(int i) const {
    const at::Generator generator = at::detail::createCPUGenerator(i);
    return (at::randn({16, 32}, generator) * (1 + i)).to(accelerator.device());
  }

  Accelerator accelerator;
  torch::nn::Sequential net;
  std::optional<torch::optim::SGD> sgd;
  std::optional<std::tuple<Model<torch::nn::SequentialImpl>, Optimizer>>
      prepared;
};

TEST(Float8OnDevice, TakesDelayedScalesWithoutReadingThem) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  Delayed training(pretend_device());
  std::vector<torch::Tensor> batches;
  for (int i = 0; i < 5; ++i) batches.push_back(training.batch(i));
  training.step(batches[0]);
  const testing::CountedOperators operators;
  for (const auto& batch : batches) training.step(batch);
  EXPECT_EQ(operators.of("aten::_local_scalar_dense"), 0);
}

TEST(Float8OnDevice, ContinuesDelayedScalesFromACheckpoint) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  const testing::TemporaryDirectory folder;
  Delayed first(pretend_device());
  for (int i = 0; i < 3; ++i) first.step(first.batch(i));
  first.accelerator.save_state(folder / "saved");
  Delayed again(pretend_device());
  // What it has noted so far is forgotten.
  again.step(again.batch(9));
  again.accelerator.load_state(folder / "saved");
  for (int i = 3; i < 7; ++i) {
    first.step(first.batch(i));
    again.step(again.batch(i));
  }
  const auto wanted = first.weights(), found = again.weights();
  for (std::size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(found[i].equal(wanted[i])) << i;
}

}  // namespace float8_device_test
}  // namespace accelerate
