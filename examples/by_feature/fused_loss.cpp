// A next-token model with a large vocabulary whose logits never exist as a
// whole: fused_linear_cross_entropy computes the last layer and its loss a few
// rows at a time.
#include <cmath>
#include <cstdio>

#include "task.h"

namespace {

constexpr std::int64_t kTokens = 128;
constexpr std::int64_t kVocabulary = 5000;

struct ModelImpl : torch::nn::Module {
  ModelImpl()
      : embedding(register_module(
            "embedding",
            torch::nn::Embedding(kVocabulary, 32))),
        head(register_module(
            "head",
            torch::nn::Linear(
                torch::nn::LinearOptions(32, kVocabulary).bias(false)))) {}

  torch::Tensor forward(
      const torch::Tensor& tokens,
      const torch::Tensor& targets) {
    return accelerate::fused_linear_cross_entropy(
        torch::tanh(embedding(tokens)),
        head->weight,
        targets,
        {.chunk_size = 32});
  }

  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(Model);

}  // namespace

int main() {
  torch::manual_seed(0);
  accelerate::Accelerator accelerator;
  Model net;
  torch::optim::AdamW adamw(net->parameters(), 2e-2);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const torch::Tensor tokens = torch::arange(kTokens).to(accelerator.device());
  const torch::Tensor targets = (tokens * 37 + 11).remainder(kVocabulary);
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(tokens, targets));
    optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  const double fused = net->forward(tokens, targets).item<double>();
  const torch::Tensor logits = net->head(torch::tanh(net->embedding(tokens)));
  const double plain =
      torch::nn::functional::cross_entropy(logits, targets).item<double>();
  char line[32];
  std::snprintf(line, sizeof line, "loss %.9f", fused);
  accelerator.print(line);
  accelerator.print(
      std::abs(fused - plain) < 1e-5 ? "all logits at once: the same loss"
                                     : "all logits at once: another loss");
  expect(
      std::abs(fused - plain) < 1e-5,
      "the loss must be that of all logits at once");
  accelerator.end_training();
}
