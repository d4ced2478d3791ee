#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/adapters.h>

namespace accelerate::testing {

/// A layer of each kind: the Mixed of tools/make_adapter_cases.py.
class MixedNetImpl : public torch::nn::Module {
 public:
  MixedNetImpl() : Module("Mixed") {
    embed = register_module("embed", torch::nn::Embedding(16, 6));
    conv1 = register_module(
        "conv1",
        torch::nn::Conv1d(torch::nn::Conv1dOptions(6, 6, 3).padding(1)));
    conv2 = register_module(
        "conv2",
        torch::nn::Conv2d(
            torch::nn::Conv2dOptions(1, 3, {3, 2}).stride(2).padding(1)));
    conv3 = register_module(
        "conv3",
        torch::nn::Conv3d(torch::nn::Conv3dOptions(1, 2, {1, 3, 2})
                              .padding({0, 1, 0})
                              .bias(false)));
    fc = register_module("fc", torch::nn::Linear(6, 8));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(8, 4).bias(false)));
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    torch::Tensor x = torch::tanh(conv1(embed(ids).transpose(1, 2)));
    x = torch::tanh(conv2(x.unsqueeze(1)));
    x = torch::tanh(conv3(x.unsqueeze(1)));
    x = x.mean({3, 4}).flatten(1);
    return head(torch::tanh(fc(x)));
  }

  torch::nn::Embedding embed = nullptr;
  torch::nn::Conv1d conv1 = nullptr;
  torch::nn::Conv2d conv2 = nullptr;
  torch::nn::Conv3d conv3 = nullptr;
  torch::nn::Linear fc = nullptr, head = nullptr;
};
TORCH_MODULE(MixedNet);

inline const std::vector<std::string> kKinds =
    {"embed", "conv1", "conv2", "conv3", "fc"};

inline torch::Tensor some_ids(std::int64_t rows = 5, std::uint64_t seed = 3) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randint(0, 16, {rows, 7}, generator, torch::kLong);
}

/// Gives all tensors of adapters random values, so that they have an effect.
inline void fill_adapters(torch::nn::Module& net, std::uint64_t seed = 4) {
  auto generator = at::detail::createCPUGenerator(seed);
  const torch::NoGradGuard no_grad;
  for (const auto& item : net.named_parameters()) {
    const bool is_adapter = item.key().find("lora_") != std::string::npos;
    if (is_adapter && item.key().find("magnitude") == std::string::npos)
      item.value().normal_(0, 0.2, generator);
  }
}

}  // namespace accelerate::testing
