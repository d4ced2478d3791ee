// A rank that writes its process id to a file and trains for a while; see
// kill_ranks.sh.
//
//   restart_rank DIRECTORY
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

int main(int, char** argv) {
  try {
    const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
    const char* rank = std::getenv("RANK");
    const std::filesystem::path directory = argv[1];
    const bool is_first = attempt != nullptr && std::string(attempt) == "0";
    // Only in the first attempt, so that later ones are not killed.
    if (is_first && rank != nullptr) {
      const auto file = directory / (std::string("pid_") + rank);
      std::ofstream(file.string() + ".part") << getpid();
      std::filesystem::rename(file.string() + ".part", file);
    }
    const accelerate::Accelerator accelerator({.cpu = true});
    torch::nn::Linear net(64, 64);
    torch::optim::SGD sgd(net->parameters(), 0.01);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    constexpr int kSteps = 50;
    // The first attempt runs until a rank is killed.
    for (int step = 0; is_first || step < kSteps; ++step) {
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({2, 64})).sum());
      optimizer.step();
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
