#include "oracle/schedules.h"

namespace accelerate::oracle {

namespace topic_lr_schedulers {

using optim::LRScheduler;

std::vector<double> numbers(const Json& json) {
  if (json.is_array()) return json.get<std::vector<double>>();
  return {json.get<double>()};
}

optim::LRLambda lambda_named(const Json& a) {
  const std::string shape = a.at("shape");
  if (shape == "inverse") {
    const double rate = a.at("rate");
    return [=](std::int64_t step) {
      return 1 / (1 + rate * static_cast<double>(step));
    };
  }
  if (shape == "linear_decay") {
    const double rate = a.at("rate");
    return
        [=](std::int64_t step) { return 1 - rate * static_cast<double>(step); };
  }
  if (shape == "constant_with_warmup")
    return optim::constant_with_warmup(a.at("warmup"));
  if (shape == "linear_with_warmup") {
    return optim::linear_with_warmup(a.at("warmup"), a.at("total"));
  }
  if (shape == "cosine_with_warmup") {
    return optim::cosine_with_warmup(
        a.at("warmup"), a.at("total"), a.at("cycles"));
  }
  throw NotBuilt("lambda " + shape);
}

optim::CyclicLROptions cyclic_options(const Json& a) {
  optim::CyclicLROptions options{
      .base_lr = numbers(a.at("base_lr")), .max_lr = numbers(a.at("max_lr"))};
  if (a.contains("step_size_up")) options.step_size_up = a["step_size_up"];
  if (a.contains("step_size_down") && !a["step_size_down"].is_null()) {
    options.step_size_down = a["step_size_down"].get<std::int64_t>();
  }
  const std::string mode = a.value("mode", "triangular");
  options.mode = mode == "triangular" ? optim::CyclicMode::triangular
      : mode == "triangular2"         ? optim::CyclicMode::triangular2
                                      : optim::CyclicMode::exp_range;
  options.gamma = a.value("gamma", 1.0);
  options.cycle_momentum = a.value("cycle_momentum", true);
  options.base_momentum = a.value("base_momentum", 0.8);
  options.max_momentum = a.value("max_momentum", 0.9);
  return options;
}

optim::OneCycleLROptions one_cycle_options(const Json& a) {
  optim::OneCycleLROptions options{
      .max_lr = numbers(a.at("max_lr")), .total_steps = a.at("total_steps")};
  options.pct_start = a.value("pct_start", 0.3);
  options.anneal_strategy = a.value("anneal_strategy", "cos") == "cos"
      ? optim::AnnealStrategy::cos
      : optim::AnnealStrategy::linear;
  options.cycle_momentum = a.value("cycle_momentum", true);
  options.base_momentum = a.value("base_momentum", 0.85);
  options.max_momentum = a.value("max_momentum", 0.95);
  options.div_factor = a.value("div_factor", 25.0);
  options.final_div_factor = a.value("final_div_factor", 1e4);
  options.three_phase = a.value("three_phase", false);
  return options;
}

optim::ReduceLROnPlateauOptions plateau_options(const Json& a) {
  optim::ReduceLROnPlateauOptions options;
  options.mode = a.value("mode", "min") == "min" ? optim::PlateauMode::min
                                                 : optim::PlateauMode::max;
  options.factor = a.value("factor", 0.1);
  options.patience = a.value("patience", 10);
  options.threshold = a.value("threshold", 1e-4);
  options.threshold_mode = a.value("threshold_mode", "rel") == "rel"
      ? optim::ThresholdMode::rel
      : optim::ThresholdMode::abs;
  options.cooldown = a.value("cooldown", 0);
  if (a.contains("min_lr")) options.min_lr = numbers(a["min_lr"]);
  options.eps = a.value("eps", 1e-8);
  return options;
}

}  // namespace topic_lr_schedulers

std::unique_ptr<optim::LRScheduler> make_schedule(const Json& schedule) {
  using namespace topic_lr_schedulers;
  const std::string name = schedule.at("name");
  const Json& a = schedule.at("args");
  const auto schedules = [&] {
    optim::LRSchedulers made;
    for (const Json& each : a.at("schedulers"))
      made.push_back(make_schedule(each));
    return made;
  };
  if (name == "LambdaLR")
    return std::make_unique<optim::LambdaLR>(lambda_named(a));
  if (name == "MultiplicativeLR")
    return std::make_unique<optim::MultiplicativeLR>(lambda_named(a));
  if (name == "StepLR") {
    return std::make_unique<optim::StepLR>(optim::StepLROptions{
        .step_size = a.at("step_size"), .gamma = a.value("gamma", 0.1)});
  }
  if (name == "MultiStepLR") {
    return std::make_unique<optim::MultiStepLR>(optim::MultiStepLROptions{
        .milestones = a.at("milestones"), .gamma = a.value("gamma", 0.1)});
  }
  if (name == "ConstantLR") {
    return std::make_unique<optim::ConstantLR>(optim::ConstantLROptions{
        .factor = a.value("factor", 1.0 / 3),
        .total_iters = a.value("total_iters", 5)});
  }
  if (name == "LinearLR") {
    return std::make_unique<optim::LinearLR>(optim::LinearLROptions{
        .start_factor = a.value("start_factor", 1.0 / 3),
        .end_factor = a.value("end_factor", 1.0),
        .total_iters = a.value("total_iters", 5)});
  }
  if (name == "ExponentialLR")
    return std::make_unique<optim::ExponentialLR>(a.at("gamma").get<double>());
  if (name == "PolynomialLR") {
    return std::make_unique<optim::PolynomialLR>(optim::PolynomialLROptions{
        .total_iters = a.value("total_iters", 5),
        .power = a.value("power", 1.0)});
  }
  if (name == "CosineAnnealingLR") {
    return std::make_unique<optim::CosineAnnealingLR>(
        optim::CosineAnnealingLROptions{
            .T_max = a.at("T_max"), .eta_min = a.value("eta_min", 0.0)});
  }
  if (name == "CosineAnnealingWarmRestarts") {
    return std::make_unique<optim::CosineAnnealingWarmRestarts>(
        optim::CosineAnnealingWarmRestartsOptions{
            .T_0 = a.at("T_0"),
            .T_mult = a.value("T_mult", 1),
            .eta_min = a.value("eta_min", 0.0)});
  }
  if (name == "CyclicLR")
    return std::make_unique<optim::CyclicLR>(cyclic_options(a));
  if (name == "OneCycleLR")
    return std::make_unique<optim::OneCycleLR>(one_cycle_options(a));
  if (name == "ReduceLROnPlateau") {
    return std::make_unique<optim::ReduceLROnPlateau>(plateau_options(a));
  }
  if (name == "SequentialLR")
    return std::make_unique<optim::SequentialLR>(
        a.at("milestones"), schedules());
  if (name == "ChainedScheduler")
    return std::make_unique<optim::ChainedScheduler>(schedules());
  throw NotBuilt("schedule " + name);
}

Json run_lr_schedulers(const Json& input) {
  using namespace topic_lr_schedulers;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  const bool is_sgd = input.at("optimizer") == "SGD";
  for (const double lr : input.at("lrs")) {
    const std::vector<torch::Tensor> parameters{
        torch::zeros({1}, torch::requires_grad())};
    std::unique_ptr<torch::optim::OptimizerOptions> options;
    if (is_sgd) {
      options = std::make_unique<torch::optim::SGDOptions>(
          torch::optim::SGDOptions(lr).momentum(
              input.at("momentum").get<double>()));
    } else {
      options = std::make_unique<torch::optim::AdamOptions>(
          torch::optim::AdamOptions(lr));
    }
    groups.emplace_back(parameters, std::move(options));
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (is_sgd) {
    optimizer = std::make_unique<torch::optim::SGD>(
        groups, torch::optim::SGDOptions(0.1));
  } else {
    optimizer = std::make_unique<torch::optim::Adam>(groups);
  }
  auto schedule = make_schedule(input.at("schedule"));
  schedule->bind(*optimizer);

  Json lrs = Json::array(), momenta = Json::array();
  const auto note = [&] {
    Json row = Json::array(), momentum = Json::array();
    for (const auto& group : optimizer->param_groups()) {
      row.push_back(group.options().get_lr());
      momentum.push_back(
          is_sgd ? static_cast<const torch::optim::SGDOptions&>(group.options())
                       .momentum()
                 : std::get<0>(static_cast<const torch::optim::AdamOptions&>(
                                   group.options())
                                   .betas()));
    }
    if (schedule->get_last_lr() != row.get<std::vector<double>>()) {
      throw std::logic_error("get_last_lr() is not what the optimizer has");
    }
    lrs.push_back(std::move(row));
    momenta.push_back(std::move(momentum));
  };
  note();
  const int steps = input.at("steps");
  for (int step = 0; step < steps; ++step) {
    // Restoring into a new schedule half way must not change the rates.
    if (step == steps / 2) {
      const StateDict state = schedule->state_dict();
      for (std::size_t i = 0; i < groups.size(); ++i) {
        optimizer->param_groups()[i].options().set_lr(input.at("lrs")[i]);
      }
      schedule = make_schedule(input.at("schedule"));
      schedule->bind(*optimizer);
      schedule->load_state_dict(state);
    }
    if (input.contains("metrics")) {
      schedule->step(
          input["metrics"][static_cast<std::size_t>(step)].get<double>());
    } else {
      schedule->step();
    }
    note();
  }
  const Json& a = input.at("schedule").at("args");
  const std::string name = input.at("schedule").at("name");
  Json found{{"lrs", std::move(lrs)}};
  if ((name == "OneCycleLR" || name == "CyclicLR") &&
      a.value("cycle_momentum", true)) {
    found["momenta"] = std::move(momenta);
  }
  return found;
}

}  // namespace accelerate::oracle
