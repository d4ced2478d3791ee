// Float8 matrices on an accelerator are multiplied by LibTorch's product, or by
// its emulation.
#include <string>

#include <ATen/record_function.h>

#include <accelerate/accelerate.h>
#include <accelerate/fp8.h>

#include "support/pretend_device.h"

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

}  // namespace float8_device_test
}  // namespace accelerate
