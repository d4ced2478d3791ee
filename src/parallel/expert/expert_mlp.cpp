#include "parallel/expert/expert_mlp.h"

#include <cmath>
#include <numeric>
#include <ostream>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/init.h>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "comm/autograd/region.h"

namespace accelerate {

namespace detail {

namespace {

// Applies each expert's matrix, and bias if there is one, to that expert's
// tokens.
at::Tensor multiply_by_expert(
    const std::vector<at::Tensor>& tokens,
    const at::Tensor& weight,
    const at::Tensor& bias,
    std::int64_t first) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  const std::vector<at::Tensor> weights =
      weight.narrow(0, first, count).unbind(0);
  std::vector<at::Tensor> biases;
  if (bias.defined()) biases = bias.narrow(0, first, count).unbind(0);
  std::vector<at::Tensor> results;
  for (std::size_t e = 0; e < tokens.size(); ++e) {
    results.push_back(
        biases.empty() ? at::linear(tokens[e], weights[e])
                       : at::linear(tokens[e], weights[e], biases[e]));
  }
  return at::cat(results);
}

// The bias of each token's expert.
at::Tensor bias_of_tokens(
    const at::Tensor& bias,
    const std::vector<std::int64_t>& counts,
    std::int64_t first) {
  std::vector<at::Tensor> rows;
  for (std::size_t e = 0; e < counts.size(); ++e) {
    rows.push_back(bias.narrow(0, first + static_cast<std::int64_t>(e), 1)
                       .expand({counts[e], -1}));
  }
  return at::cat(rows);
}

}  // namespace

void check_mlp(const ExpertMlpOptions& options) {
  detail::require_at_least(
      "parallel",
      "the intermediate_size of experts",
      options.intermediate_size,
      1);
}

at::Tensor activate(const at::Tensor& tensor, ExpertActivation activation) {
  switch (activation) {
    case ExpertActivation::relu:
      return at::relu(tensor);
    case ExpertActivation::gelu:
      return at::gelu(tensor);
    case ExpertActivation::silu:
      break;
  }
  return at::silu(tensor);
}

at::Tensor compute_experts(
    const ExpertMlpImpl& mlp,
    const at::Tensor& tokens,
    const std::vector<std::int64_t>& counts,
    std::int64_t first,
    const Group& split) {
  const ExpertMlpOptions& options = mlp.options();
  // A rank without experts has empty parameters and no tokens, but still takes
  // part in the other ranks' backward.
  if (counts.empty()) return tokens * 1;
  const bool is_split = mlp.up_proj.size(1) != options.intermediate_size;
  const at::Tensor inputs = is_split ? copy_to_region(tokens, split) : tokens;
  const auto by_expert = inputs.split_with_sizes(counts);
  const at::Tensor up =
      multiply_by_expert(by_expert, mlp.up_proj, mlp.up_bias, first);
  at::Tensor inner;
  if (options.gated) {
    inner =
        activate(
            multiply_by_expert(by_expert, mlp.gate_proj, mlp.gate_bias, first),
            options.activation) *
        up;
  } else {
    inner = activate(up, options.activation);
  }
  const auto inner_by_expert = inner.split_with_sizes(counts);
  if (!is_split) {
    return multiply_by_expert(
        inner_by_expert, mlp.down_proj, mlp.down_bias, first);
  }
  at::Tensor result = reduce_from_region(
      multiply_by_expert(inner_by_expert, mlp.down_proj, {}, first), split);
  if (mlp.down_bias.defined()) {
    result = result +
        bias_of_tokens(mlp.down_bias, counts, first).to(result.scalar_type());
  }
  return result;
}

}  // namespace detail

ExpertMlpImpl::ExpertMlpImpl(
    std::int64_t num_experts,
    std::int64_t hidden_size,
    const ExpertMlpOptions& options)
    : num_experts_(num_experts), hidden_size_(hidden_size), options_(options) {
  if (num_experts < 1 || hidden_size < 1) {
    throw ConfigError(detail::format(
        "[parallel] hidden_size and num_experts of experts must be at least 1, "
        "but are {} and {}",
        hidden_size,
        num_experts));
  }
  detail::check_mlp(options);
  ExpertMlpImpl::reset();
}

void ExpertMlpImpl::reset() {
  const std::int64_t inner = options_.intermediate_size;
  const auto add = [&](const char* name,
                       std::vector<std::int64_t> sizes,
                       std::int64_t fan_in) {
    const at::Tensor tensor = register_parameter(name, at::empty(sizes));
    // Initialise as torch::nn::Linear does: each slice is one linear layer.
    const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
    torch::nn::init::uniform_(tensor, -bound, bound);
    return tensor;
  };
  if (options_.gated)
    gate_proj =
        add("gate_proj", {num_experts_, inner, hidden_size_}, hidden_size_);
  up_proj = add("up_proj", {num_experts_, inner, hidden_size_}, hidden_size_);
  down_proj = add("down_proj", {num_experts_, hidden_size_, inner}, inner);
  if (!options_.bias) return;
  if (options_.gated)
    gate_bias = add("gate_bias", {num_experts_, inner}, hidden_size_);
  up_bias = add("up_bias", {num_experts_, inner}, hidden_size_);
  down_bias = add("down_bias", {num_experts_, hidden_size_}, inner);
}

void ExpertMlpImpl::pretty_print(std::ostream& stream) const {
  stream << "accelerate::ExpertMlp(num_experts=" << num_experts_
         << ", hidden_size=" << hidden_size_
         << ", intermediate_size=" << options_.intermediate_size << ")";
}

at::Tensor ExpertMlpImpl::forward(
    const at::Tensor& tokens,
    const std::vector<std::int64_t>& counts) {
  const std::int64_t total =
      std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (tokens.dim() != 2 || tokens.size(0) != total ||
      static_cast<std::int64_t>(counts.size()) != up_proj.size(0)) {
    throw ConfigError(detail::format(
        "[parallel] an ExpertMlp of {} experts got tokens of shape {} and "
        "counts {}, but must get one count per expert, "
        "which add up to the rows",
        up_proj.size(0),
        tokens.sizes(),
        at::IntArrayRef(counts)));
  }
  return detail::compute_experts(*this, tokens, counts, 0, Group());
}

}  // namespace accelerate
