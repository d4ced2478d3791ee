// ResNet-18 (He et al., 2016) with torchvision's names: load_model() reads the
// weights that Python saved from torchvision.models.resnet18().
#pragma once

#include <cstdint>

#include <torch/torch.h>

inline torch::nn::Conv2d convolution(
    std::int64_t in,
    std::int64_t out,
    std::int64_t size,
    std::int64_t stride) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, size)
                               .stride(stride)
                               .padding(size / 2)
                               .bias(false));
}

/// Two convolutions whose result is added to their input.
struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : conv1(register_module("conv1", convolution(in, out, 3, stride))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(out))),
        conv2(register_module("conv2", convolution(out, out, 3, 1))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(out))) {
    if (stride != 1 || in != out) {
      downsample = register_module(
          "downsample",
          torch::nn::Sequential(
              convolution(in, out, 1, stride), torch::nn::BatchNorm2d(out)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = bn2(conv2(torch::relu(bn1(conv1(x)))));
    return torch::relu(y + (downsample ? downsample->forward(x) : x));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

/// Images [N, 3, H, W], of 32 pixels or more, give logits [N, num_classes].
struct ResNet18Impl : torch::nn::Module {
  explicit ResNet18Impl(std::int64_t num_classes)
      : conv1(register_module("conv1", convolution(3, 64, 7, 2))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(64))),
        layer1(register_module("layer1", layer(64, 64, 1))),
        layer2(register_module("layer2", layer(64, 128, 2))),
        layer3(register_module("layer3", layer(128, 256, 2))),
        layer4(register_module("layer4", layer(256, 512, 2))),
        fc(register_module("fc", torch::nn::Linear(512, num_classes))) {
    for (const auto& module : modules(/*include_self=*/false)) {
      if (const auto* conv = module->as<torch::nn::Conv2d>())
        torch::nn::init::kaiming_normal_(
            conv->weight, 0, torch::kFanOut, torch::kReLU);
    }
  }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor stem =
        torch::max_pool2d(torch::relu(bn1(conv1(images))), 3, 2, 1);
    const torch::Tensor features = layer4->forward(
        layer3->forward(layer2->forward(layer1->forward(stem))));
    return fc(features.mean({2, 3}));
  }

  static torch::nn::Sequential
  layer(std::int64_t in, std::int64_t out, std::int64_t stride) {
    return torch::nn::Sequential(
        BasicBlock(in, out, stride), BasicBlock(out, out, 1));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet18);
