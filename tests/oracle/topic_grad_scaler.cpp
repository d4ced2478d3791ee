#include <accelerate/accelerate.h>

#include "oracle/oracle.h"

namespace accelerate::oracle {

Json run_grad_scaler(const Json& input) {
  GradScaler scaler(
      {.init_scale = input.at("init_scale"),
       .growth_factor = input.at("growth_factor"),
       .backoff_factor = input.at("backoff_factor"),
       .growth_interval = input.at("growth_interval"),
       .enabled = input.at("enabled")});
  const std::size_t count = input.at("optimizers");
  std::vector<torch::Tensor> weights;
  std::vector<torch::optim::SGD> optimizers;
  for (std::size_t i = 0; i < count; ++i) {
    weights.push_back(torch::zeros({2}, torch::requires_grad()));
    optimizers.emplace_back(
        std::vector<torch::Tensor>{weights.back()},
        torch::optim::SGDOptions(1));
  }
  const double bad = input.at("kind") == "inf" ? INFINITY : NAN;
  const auto first_elements = [&] {
    Json row = Json::array();
    for (const auto& weight : weights)
      row.push_back(weight.grad()[0].item<double>());
    return row;
  };
  Json steps = Json::array();
  for (std::size_t step = 0; step < input.at("found_inf").size(); ++step) {
    torch::Tensor loss = torch::zeros({});
    for (std::size_t i = 0; i < count; ++i) {
      optimizers[i].zero_grad();
      loss = loss + weights[i].sum();
    }
    scaler.scale(loss).backward();
    for (std::size_t i = 0; i < count; ++i) {
      if (input["found_inf"][step][i]) weights[i].grad()[1] = bad;
    }
    Json row{
        {"scaled_gradients", first_elements()},
        {"unscaled_gradients", nullptr}};
    if (input.at("unscale_first")) {
      for (auto& optimizer : optimizers) scaler.unscale_(optimizer);
      row["unscaled_gradients"] = first_elements();
    }
    row["skipped"] = Json::array();
    for (auto& optimizer : optimizers)
      row["skipped"].push_back(!scaler.step(optimizer));
    const bool sets_scale =
        !input.at("set_scale_at").is_null() && input["set_scale_at"] == step;
    scaler.update(
        sets_scale && scaler.is_enabled() ? std::optional<double>(8)
                                          : std::nullopt);
    row["scale"] = scaler.get_scale();
    row["growth_tracker"] =
        scaler.is_enabled() ? Json(scaler.growth_tracker()) : Json();
    steps.push_back(std::move(row));
    // A scaler restored from its state must behave the same.
    GradScaler restored({.init_scale = 3, .enabled = scaler.is_enabled()});
    restored.load_state_dict(scaler.state_dict());
    scaler = restored;
  }
  Json state = Json::object();
  for (const auto& [key, value] : scaler.state_dict().values()) {
    if (const auto* integer = std::get_if<std::int64_t>(&value))
      state[key] = *integer;
    if (const auto* real = std::get_if<double>(&value)) state[key] = *real;
  }
  return {{"steps", std::move(steps)}, {"state_dict", std::move(state)}};
}

}  // namespace accelerate::oracle
