// Topics of small features of the training room.
#include <accelerate/accelerate.h>

#include <stdexcept>

#include "oracle/oracle.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

Json run_local_sgd(const Json& input) {
  const int count = input.at("num_processes");
  Json ranks = Json::array();
  for (int rank = 0; rank < count; ++rank) ranks.push_back(nullptr);
  testing::run_on_ranks(count, [&](const WorldOptions& world) {
    struct Net : torch::nn::Module {
      explicit Net(const torch::Tensor& start) {
        weight = register_parameter("weight", start);
      }
      torch::Tensor forward(const torch::Tensor& gradient) {
        return (weight * gradient).sum();
      }
      torch::Tensor weight;
    };
    Accelerator accelerator({.world = world});
    const auto rank = static_cast<std::size_t>(accelerator.process_index());
    const auto numbers = [](const Json& json) {
      return torch::tensor(json.get<std::vector<double>>(), torch::kDouble);
    };
    auto net = std::make_shared<Net>(numbers(input.at("start")));
    torch::optim::SGD sgd(net->parameters(), input.at("lr").get<double>());
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const torch::Tensor gradient = numbers(input.at("gradients").at(rank));
    LocalSGD local(
        accelerator,
        model,
        {.local_sgd_steps = input.at("local_sgd_steps"),
         .enabled = input.at("enabled")});
    Json after_each_step = Json::array();
    const int steps = input.at("steps");
    for (int step = 0; step < steps; ++step) {
      accelerator.backward(model(gradient));
      optimizer.step();
      optimizer.zero_grad();
      local.step();
      after_each_step.push_back(listify(net->weight));
    }
    local.finish();
    ranks[rank] = {
        {"after_each_step", after_each_step},
        {"after_leaving", listify(net->weight)}};
  });
  return {{"ranks", ranks}};
}

Json run_find_executable_batch_size(const Json& input) {
  BatchSizeSearchOptions options{
      .starting_batch_size = input.at("starting_batch_size")};
  if (input.at("reduce") == "halve") options.reduce_batch_size = halve;
  if (input.at("reduce") == "subtract_16") {
    options.reduce_batch_size = [](std::int64_t size) { return size - 16; };
  }
  BatchSizeSearch search(options);
  const std::string message = input.at("message");
  Json calls = Json::array();
  for (int call = 0; call < input.at("calls"); ++call) {
    Json tried = Json::array();
    try {
      // In C++, a call with too many arguments does not compile.
      if (input.at("extra_argument"))
        throw std::invalid_argument("an argument too many");
      const std::int64_t returned = search([&](std::int64_t size) {
        tried.push_back(size);
        if (size <= input.at("largest_that_works")) return size;
        if (input.at("exception") == "RuntimeError")
          throw std::runtime_error(message);
        throw std::invalid_argument(message);
      });
      calls.push_back({{"tried", tried}, {"returned", returned}});
    } catch (const std::exception& error) {
      calls.push_back({{"tried", tried}, {"error", error.what()}});
    }
  }
  return {{"calls", calls}};
}

}  // namespace accelerate::oracle
