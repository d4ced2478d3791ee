// Trains an adapter that PEFT wrote, and saves it; see cross_adapters.py.
//
// usage: cross_adapters BASE INPUTS ADAPTER OUT: BASE is weights of MixedNet or
// a program; prints the loss after the steps. OUT gets the adapter, OUT/merged
// the model.
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accelerate/adapters.h>
#include <accelerate/exported_model.h>
#include <accelerate/weights.h>

#include "adapters/mixed_net.h"

namespace {

using namespace accelerate;

constexpr int kSteps = 3;

template <class Net, class Loss>
void train(Net& net, const Loss& loss, char** paths) {
  load_adapters(net, paths[3], "default", {.is_trainable = true});
  net->eval();
  std::vector<torch::Tensor> trained;
  for (const torch::Tensor& each : net->parameters())
    if (each.requires_grad()) trained.push_back(each);
  torch::optim::SGD sgd(trained, 0.1);
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    loss().backward();
    sgd.step();
  }
  const std::filesystem::path out = paths[4];
  save_adapters(net, out);
  std::cout.precision(9);
  std::cout << loss().template item<double>() << "\n";
  merge_and_unload(net);
  save_model(*net, out / "merged");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string base = argv[1];
  std::vector<c10::IValue> inputs;
  const auto given = load_state_dict(argv[2]);
  for (int i = 0; given.contains("input." + std::to_string(i)); ++i)
    inputs.emplace_back(given.at("input." + std::to_string(i)));
  if (base.ends_with(".pt2")) {
    ExportedModel net = load_exported(base);
    train(
        net,
        [&] {
          const ExportedOutputs out = net->forward(inputs);
          return out.contains("loss") ? out["loss"] : out[0].square().mean();
        },
        argv);
    return 0;
  }
  accelerate::testing::MixedNet net;
  load_model(*net, base);
  train(
      net,
      [&] { return net->forward(inputs[0].toTensor()).square().mean(); },
      argv);
  return 0;
}
