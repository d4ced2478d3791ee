#include <accelerate/experts.h>

#include <cmath>
#include <ostream>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/init.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "parallel/expert/full_precision.h"

namespace accelerate {

namespace {

using detail::format;

void check_capacity(
    const char* name,
    std::optional<double> factor,
    std::vector<std::string>& complaints) {
  if (!factor || (std::isfinite(*factor) && *factor > 0)) return;
  complaints.push_back(format(
      "[parallel] {} must be above 0, or unset for experts that take all "
      "tokens, but is {}",
      name,
      *factor));
}

void check_router(
    std::int64_t hidden_size,
    std::int64_t num_experts,
    const RouterOptions& options) {
  std::vector<std::string> complaints;
  if (hidden_size < 1 || num_experts < 1) {
    complaints.push_back(format(
        "[parallel] a router's hidden_size and num_experts must be at least 1, "
        "but are {} and {}",
        hidden_size,
        num_experts));
  } else if (options.top_k < 1 || options.top_k > num_experts) {
    complaints.push_back(format(
        "[parallel] top_k must be from 1 to {}, the "
        "number of experts, but is {}",
        num_experts,
        options.top_k));
  }
  check_capacity("capacity_factor", options.capacity_factor, complaints);
  check_capacity(
      "eval_capacity_factor", options.eval_capacity_factor, complaints);
  if (options.min_capacity < 0) {
    complaints.push_back(format(
        "[parallel] min_capacity must be at least 0, but is {}",
        options.min_capacity));
  }
  if (!(options.balance_loss_coefficient >= 0) ||
      !(options.z_loss_coefficient >= 0) || !(options.noise_scale >= 0) ||
      !(options.weight_scale > 0)) {
    complaints.push_back(format(
        "[parallel] a router's balance_loss_coefficient, z_loss_coefficient "
        "and noise_scale must be at least 0 and its weight_scale above 0, but "
        "they are {}, {}, {} and {}",
        options.balance_loss_coefficient,
        options.z_loss_coefficient,
        options.noise_scale,
        options.weight_scale));
  }
  if (options.noise == RouterNoise::jitter && options.noise_scale >= 1) {
    complaints.push_back(format(
        "[parallel] noise_scale must be below 1, since jitter could otherwise "
        "flip signs of inputs, but is {}",
        options.noise_scale));
  }
  if (!complaints.empty()) throw ConfigError(detail::join(complaints, "\n"));
}

at::Tensor noise_like(const at::Tensor& logits, const RouterOptions& options) {
  if (options.noise == RouterNoise::normal)
    return at::randn_like(logits) * options.noise_scale;
  // Gumbel: -log(-log(u)) = -log(e), where e is exponentially distributed.
  return at::empty_like(logits).exponential_().log().neg() *
      options.noise_scale;
}

}  // namespace

RouterImpl::RouterImpl(
    std::int64_t hidden_size,
    std::int64_t num_experts,
    const RouterOptions& options)
    : hidden_size_(hidden_size), num_experts_(num_experts), options_(options) {
  check_router(hidden_size, num_experts, options);
  RouterImpl::reset();
}

void RouterImpl::reset() {
  weight =
      register_parameter("weight", at::empty({num_experts_, hidden_size_}));
  // Initialise as torch::nn::Linear does.
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
}

void RouterImpl::pretty_print(std::ostream& stream) const {
  stream << "accelerate::Router(hidden_size=" << hidden_size_
         << ", num_experts=" << num_experts_ << ", top_k=" << options_.top_k
         << ")";
}

Routing RouterImpl::forward(const at::Tensor& tokens) {
  const detail::FullPrecisionScope full_precision(tokens.device().type());
  at::Tensor inputs = tokens.to(at::kFloat);
  if (is_training() && options_.noise == RouterNoise::jitter) {
    inputs = inputs *
        at::empty_like(inputs).uniform_(
            1 - options_.noise_scale, 1 + options_.noise_scale);
  }
  Routing routing;
  routing.logits = at::linear(inputs, weight.to(at::kFloat));
  const bool is_softmax = options_.score == RouterScore::softmax;
  const at::Tensor raw = is_softmax ? at::softmax(routing.logits, -1)
                                    : at::sigmoid(routing.logits);
  at::Tensor chosen_by = raw;
  if (is_training() &&
      (options_.noise == RouterNoise::gumbel ||
       options_.noise == RouterNoise::normal)) {
    chosen_by =
        (routing.logits + noise_like(routing.logits, options_)).detach();
  }
  if (chosen_by.is_same(raw)) {
    auto [weights, experts] = at::topk(raw, options_.top_k, -1);
    routing.weights = std::move(weights);
    routing.experts = std::move(experts);
  } else {
    routing.experts = std::get<1>(at::topk(chosen_by, options_.top_k, -1));
    routing.weights = raw.gather(-1, routing.experts);
  }
  if (options_.normalize_weights) {
    routing.weights = routing.weights /
        routing.weights.sum(-1, /*keepdim=*/true).clamp_min(1e-20);
  }
  if (options_.weight_scale != 1)
    routing.weights = routing.weights * options_.weight_scale;
  routing.scores =
      is_softmax ? raw : raw / raw.sum(-1, /*keepdim=*/true).clamp_min(1e-20);
  return routing;
}

}  // namespace accelerate
