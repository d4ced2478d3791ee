// Operators in a step (forward, loss, backward, clipping, AdamW, zero_grad) of
// ten models: prepared, with LibTorch by hand as the baseline. The figures do
// not depend on the machine. With the argument `list`, also prints how often
// each operator runs.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <accelerate/accelerate.h>

#include "model_operators.h"
#include "report.h"

namespace {

using namespace accelerate::benchmarks;

std::map<std::string, int> counts;

std::map<std::string, int> count(const std::function<void()>& step) {
  for (int i = 0; i < 2; ++i) step();
  counts.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function)
              -> std::unique_ptr<at::ObserverContext> {
            if (std::string_view(function.name()).starts_with("aten::"))
              ++counts[function.name()];
            return nullptr;
          })
          .scopes({at::RecordScope::FUNCTION}));
  step();
  at::removeCallback(handle);
  return counts;
}

Tensor loss_of(const Tensor& logits, const Tensor& targets) {
  if (logits.sizes() == targets.sizes())
    return torch::mse_loss(logits, targets);
  return nn::functional::cross_entropy(
      logits.dim() == 3 ? logits.flatten(0, 1) : logits, targets.flatten());
}

template <class Net>
std::map<std::string, int> by_hand(Net net, const Tensor& x, const Tensor& y) {
  torch::optim::AdamW adamw(net->parameters());
  return count([&] {
    loss_of(net->forward(x), y).backward();
    nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    adamw.step();
    adamw.zero_grad();
  });
}

template <class Net>
std::map<std::string, int> prepared(Net net, const Tensor& x, const Tensor& y) {
  const accelerate::Accelerator accelerator({.cpu = true});
  torch::optim::AdamW adamw(net->parameters());
  const auto [model, optimizer] = accelerator.prepare(net, adamw);
  return count([&, &model = model, &optimizer = optimizer] {
    accelerator.backward(loss_of(model(x), y));
    optimizer.step({.max_norm = 1.0});
    optimizer.zero_grad();
  });
}

int total(const std::map<std::string, int>& all) {
  int sum = 0;
  for (const auto& [name, number] : all) sum += number;
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const bool lists = argc > 1 && std::string_view(argv[1]) == "list";
  torch::manual_seed(1);
  const auto measure = [&](const std::string& name,
                           const auto& make,
                           const Tensor& x,
                           const Tensor& y) {
    const auto hand = by_hand(make(), x, y);
    const auto ours = prepared(make(), x, y);
    report(
        {"model_operators",
         name,
         static_cast<double>(total(ours)),
         "operators",
         static_cast<double>(total(hand)),
         static_cast<double>(total(ours)) / total(hand),
         1});
    if (!lists) return;
    for (const auto& [operation, number] : ours)
      std::printf("%s %s %d\n", name.c_str(), operation.c_str(), number);
  };
  const auto ids = [](at::IntArrayRef sizes) {
    return torch::randint(10, sizes, torch::kLong);
  };
  const Tensor images = torch::randn({4, 3, 32, 32});
  measure("mlp", [] { return mlp(); }, torch::randn({8, 64}), ids({8}));
  measure("cnn", [] { return cnn(); }, images, ids({4}));
  measure("resnet", [] { return resnet(); }, images, ids({4}));
  measure("lstm", [] { return Lstm(); }, ids({4, 16}), ids({4, 16}));
  measure(
      "encoder", [] { return Encoder(); }, torch::randn({16, 4, 64}), ids({4}));
  measure("gpt", [] { return TinyGpt(); }, ids({4, 16}), ids({4, 16}));
  measure("vit", [] { return Vit(); }, images, ids({4}));
  measure("unet", [] { return Unet(); }, images, torch::randn({4, 3, 32, 32}));
  measure("moe", [] { return Moe(); }, torch::randn({32, 64}), ids({32}));
  measure("recommender", [] { return Recommender(); }, ids({8, 5}), ids({8}));
  return 0;
}
