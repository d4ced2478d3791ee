#include <accelerate/accelerate.h>

#include "oracle/schedules.h"
#include "oracle/training.h"
#include "support/run_on_ranks.h"

namespace accelerate::oracle {

namespace topic_training {

namespace F = torch::nn::functional;

torch::nn::Sequential make_net(const Json& layers) {
  torch::nn::Sequential net;
  for (const Json& layer : layers) {
    if (layer.at("type") == "relu") {
      net->push_back(torch::nn::ReLU());
    } else if (layer.at("type") == "tanh") {
      net->push_back(torch::nn::Tanh());
    } else {
      const torch::Tensor weight = read_tensor(layer.at("weight"));
      torch::nn::Linear linear(
          torch::nn::LinearOptions(weight.size(1), weight.size(0))
              .bias(layer.contains("bias")));
      linear->weight.set_data(weight);
      if (layer.contains("bias"))
        linear->bias.set_data(read_tensor(layer.at("bias")));
      net->push_back(linear);
    }
  }
  return net;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Json& optimizer,
    const std::vector<torch::Tensor>& parameters) {
  const std::string name = optimizer.at("name");
  const Json& a = optimizer.at("args");
  const double lr = a.at("lr");
  const auto betas = [&] {
    return std::tuple<double, double>(a["betas"][0], a["betas"][1]);
  };
  if (name == "SGD") {
    return std::make_unique<torch::optim::SGD>(
        parameters,
        torch::optim::SGDOptions(lr)
            .momentum(a["momentum"])
            .weight_decay(a["weight_decay"])
            .nesterov(a["nesterov"])
            .dampening(a["dampening"]));
  }
  if (name == "Adam") {
    return std::make_unique<torch::optim::Adam>(
        parameters,
        torch::optim::AdamOptions(lr)
            .betas(betas())
            .eps(a["eps"])
            .weight_decay(a["weight_decay"])
            .amsgrad(a["amsgrad"]));
  }
  if (name == "AdamW") {
    return std::make_unique<torch::optim::AdamW>(
        parameters,
        torch::optim::AdamWOptions(lr)
            .betas(betas())
            .eps(a["eps"])
            .weight_decay(a["weight_decay"])
            .amsgrad(a["amsgrad"]));
  }
  if (name == "RMSprop") {
    return std::make_unique<torch::optim::RMSprop>(
        parameters,
        torch::optim::RMSpropOptions(lr)
            .alpha(a["alpha"])
            .eps(a["eps"])
            .weight_decay(a["weight_decay"])
            .momentum(a["momentum"])
            .centered(a["centered"]));
  }
  if (name == "Adagrad") {
    return std::make_unique<torch::optim::Adagrad>(
        parameters,
        torch::optim::AdagradOptions(lr)
            .lr_decay(a["lr_decay"])
            .weight_decay(a["weight_decay"])
            .initial_accumulator_value(a["initial_accumulator_value"])
            .eps(a["eps"]));
  }
  throw NotBuilt("optimizer " + name);
}

void clip(
    const Json& clipping,
    const Accelerator& accelerator,
    const Model<torch::nn::SequentialImpl>& model,
    Json& norms) {
  if (clipping.is_null()) return;
  if (clipping.at("kind") == "value") {
    accelerator.clip_grad_value_(model, clipping.at("max"));
    return;
  }
  const Json& type = clipping.at("norm_type");
  const double norm_type = type == "inf" ? INFINITY : type.get<double>();
  norms.push_back(
      accelerator
          .clip_grad_norm_(model, clipping.at("max"), {.norm_type = norm_type})
          .item<double>());
}

// The object that the recorded training runs register.
struct RecordedObject {
  std::int64_t count = 0;
  torch::Tensor history;
  std::string name;
  [[nodiscard]] StateDict state_dict() const {
    return {{"count", count}, {"history", history}, {"name", name}};
  }
  void load_state_dict(const StateDict& state) {
    count = state.get<std::int64_t>("count");
    history = state.get<torch::Tensor>("history");
    name = state.get<std::string>("name");
  }
};

}  // namespace topic_training

Json run_training(const Json& input) {
  using namespace topic_training;
  return run_training_from(input, std::nullopt);
}

Json run_training_from(const Json& input, const std::optional<Resume>& resume) {
  using namespace topic_training;
  const int count = input.at("num_processes");
  std::vector<std::vector<double>> losses(static_cast<std::size_t>(count));
  Json weights = Json::object();
  Json gradient_norms = Json::array();
  testing::run_on_ranks(count, [&](const WorldOptions& world) {
    Accelerator accelerator(
        {.mixed_precision =
             parse_precision(input.at("mixed_precision").get<std::string>()),
         .gradient_accumulation_steps =
             input.at("accumulation_steps").get<int>(),
         .gradient_accumulation = {.divide_by_full_window = true},
         .scheduler =
             {.step_with_processes = !input.at("split_batches").get<bool>()},
         .world = world});
    torch::nn::Sequential net = make_net(input.at("layers"));
    auto inner = make_optimizer(input.at("optimizer"), net->parameters());
    auto [model, optimizer, loader] = accelerator.prepare(
        net,
        *inner,
        DataLoader(
            TensorDataset(
                read_tensor(input.at("inputs")),
                read_tensor(input.at("targets"))),
            {.batch_size = input.at("batch_size"),
             .drop_last = input.at("drop_last"),
             .split_batches = input.at("split_batches").get<bool>()}));
    std::unique_ptr<optim::LRScheduler> schedule;
    std::optional<Scheduler> scheduler;
    if (!input.at("schedule").is_null()) {
      schedule = make_schedule(input.at("schedule"));
      schedule->bind(*inner);
      scheduler.emplace(accelerator.prepare(*schedule));
    }
    Json norms = Json::array();
    const int epochs = input.at("epochs");
    int first_epoch = 0;
    std::int64_t num_skipped = 0;
    RecordedObject object;
    if (resume) {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : net->parameters()) parameter.zero_();
      accelerator.register_for_checkpointing(object);
      accelerator.load_state(resume->checkpoint);
      if (object.count != resume->micro_steps) {
        throw std::runtime_error("the registered object was not restored");
      }
      first_epoch = resume->micro_steps / static_cast<int>(loader.size());
      num_skipped = resume->micro_steps % loader.size();
    }
    for (int epoch = first_epoch; epoch < epochs; ++epoch) {
      const std::int64_t skipped = std::exchange(num_skipped, 0);
      for (auto& [x, y] : skip_first_batches(loader, skipped)) {
        const auto micro_step = accelerator.accumulate(model);
        const torch::Tensor output = model(x);
        const torch::Tensor loss = input.at("loss") == "mse"
            ? F::mse_loss(output, y)
            : F::cross_entropy(output, y);
        losses[static_cast<std::size_t>(accelerator.process_index())].push_back(
            loss.item<double>());
        accelerator.backward(loss);
        if (accelerator.sync_gradients())
          clip(input.at("clip"), accelerator, model, norms);
        optimizer.step();
        if (scheduler) scheduler->step();
        optimizer.zero_grad();
      }
    }
    if (accelerator.is_main_process()) {
      gradient_norms = std::move(norms);
      for (const auto& item : net->named_parameters()) {
        weights[item.key()] = write_tensor(item.value());
      }
    }
  });
  Json steps = Json::array();
  for (std::size_t step = 0; step < losses[0].size(); ++step) {
    Json row = Json::array();
    for (const auto& of_rank : losses) row.push_back(of_rank.at(step));
    steps.push_back(std::move(row));
  }
  return {
      {"losses", std::move(steps)},
      {"gradient_norms", gradient_norms},
      {"weights", weights}};
}

}  // namespace accelerate::oracle
