// Two ranks that make different calls.
//   mixed_calls_rank DIRECTORY CALL CALL: ranks of a launcher, which make these.
//   mixed_calls_rank threads DIRECTORY CALL:CALL...: for each pair, two ranks
//     that are threads. Prints "== CALL:CALL RANK" and the rank's error.
//   mixed_calls_rank machines ...: as if each were on a machine of its own.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accelerate/accelerate.h>

namespace {

struct Training {
  accelerate::Accelerator accelerator;
  accelerate::Model<torch::nn::LinearImpl> model;
  std::string directory;
};

using Call = std::function<void(const Training&)>;

const std::map<std::string, Call>& calls() {
  static const std::map<std::string, Call> all{
      {"save_state",
       [](const Training& training) {
         static_cast<void>(
             training.accelerator.save_state(training.directory + "/state"));
       }},
      {"load_state",
       [](const Training& training) {
         training.accelerator.load_state(training.directory + "/state");
       }},
      {"save_model",
       [](const Training& training) {
         training.accelerator.save_model(
             training.model, training.directory + "/model");
       }},
      {"get_state_dict",
       [](const Training& training) {
         static_cast<void>(training.accelerator.get_state_dict(training.model));
       }},
      {"resume",
       [](const Training& training) {
         static_cast<void>(training.accelerator.resume());
       }},
      {"backward",
       [](const Training& training) {
         auto model = training.model;
         training.accelerator.backward(model(at::ones({2, 4})).sum());
       }},
      {"wait_for_everyone",
       [](const Training& training) {
         training.accelerator.wait_for_everyone();
       }},
      {"gather",
       [](const Training& training) {
         static_cast<void>(training.accelerator.gather(at::ones({2})));
       }},
      {"broadcast_object",
       [](const Training& training) {
         static_cast<void>(accelerate::broadcast_object(
             std::string("text"), training.accelerator.world().group()));
       }},
      {"gather_object",
       [](const Training& training) {
         static_cast<void>(gather_object(
             std::vector<std::string>{"text"},
             training.accelerator.mesh().batch_group()));
       }},
      {"end_training",
       [](const Training& training) { training.accelerator.end_training(); }},
  };
  return all;
}

void run(
    const accelerate::WorldOptions& world,
    const std::vector<std::string>& arguments) {
  accelerate::AcceleratorOptions options;
  options.world = world;
  options.project_dir = arguments[0];
  const accelerate::Accelerator accelerator(options);
  torch::nn::Linear net(4, 4);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const Training training{accelerator, model, arguments[0]};
  const auto rank = static_cast<std::size_t>(accelerator.process_index());
  calls().at(arguments[1 + rank])(training);
  // A call that needs no other rank ends; the program goes on.
  accelerator.wait_for_everyone();
}

struct Pair {
  std::string directory;
  std::string name;
  bool are_machines = false;

  [[nodiscard]] std::vector<std::string> arguments() const {
    const std::size_t colon = name.find(':');
    return {directory, name.substr(0, colon), name.substr(colon + 1)};
  }
};

void run_as_threads(const Pair& pair) {
  static std::mutex printing;
  const auto store = accelerate::Store::in_memory();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      accelerate::WorldOptions world;
      world.rank = rank;
      world.size = 2;
      world.store = store;
      world.device = at::kCPU;
      world.timeout = std::chrono::seconds(100);
      world.hang_seconds = 0;
      if (pair.are_machines) {
        world.local_rank = 0;
        world.local_size = 1;
        world.transport = "gloo";
      }
      std::string text = "none";
      try {
        run(world, pair.arguments());
      } catch (const std::exception& error) {
        text = error.what();
      }
      const std::lock_guard lock(printing);
      std::cout << "== " << pair.name << ' ' << rank << '\n' << text << '\n';
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool are_machines = arguments.at(0) == "machines";
  if (are_machines || arguments[0] == "threads") {
    // LibTorch's recorder adds groups without a lock.
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
    constexpr std::size_t kAtOnce = 12;
    for (std::size_t i = 2; i < arguments.size(); i += kAtOnce) {
      std::vector<std::thread> pairs;
      const std::size_t end = std::min(i + kAtOnce, arguments.size());
      for (std::size_t k = i; k < end; ++k) {
        pairs.emplace_back(
            run_as_threads,
            Pair{
                arguments[1] + "/" + std::to_string(k),
                arguments[k],
                are_machines});
      }
      for (std::thread& pair : pairs) pair.join();
    }
    return 0;
  }
  try {
    run({}, arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
