#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <stdexcept>

namespace {

void require_numbers(std::span<const float> logits) {
  bool has_finite = false;
  for (const float logit : logits) {
    if (std::isnan(logit) || logit == std::numeric_limits<float>::infinity())
      throw std::runtime_error("the model computes logits that are not finite");
    has_finite = has_finite || std::isfinite(logit);
  }
  if (!has_finite)
    throw std::runtime_error("the model gives no token a probability");
}

/// Tokens that top_k leaves, in order of probability if there is a choice.
std::vector<std::size_t> candidates_of(
    std::span<const float> logits,
    const SamplingOptions& options) {
  std::vector<std::size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), std::size_t{0});
  const auto is_better = [&](std::size_t a, std::size_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options.temperature == 0) {
    return {*std::min_element(tokens.begin(), tokens.end(), is_better)};
  }
  const auto num = static_cast<std::size_t>(options.top_k);
  if (num > 0 && num < tokens.size()) {
    std::partial_sort(
        tokens.begin(),
        tokens.begin() + static_cast<std::ptrdiff_t>(num),
        tokens.end(),
        is_better);
    tokens.resize(num);
  } else if (options.top_p < 1) {
    std::sort(tokens.begin(), tokens.end(), is_better);
  }
  return tokens;
}

}  // namespace

std::vector<double> token_probabilities(
    std::span<const float> logits,
    const SamplingOptions& options) {
  require_numbers(logits);
  std::vector<std::size_t> tokens = candidates_of(logits, options);
  const double most = *std::max_element(logits.begin(), logits.end());
  const double temperature = options.temperature == 0 ? 1 : options.temperature;
  std::vector<double> probabilities(logits.size());
  double sum = 0;
  for (const std::size_t token : tokens) {
    // At most 1, so that no temperature makes it infinite.
    probabilities[token] = std::exp((logits[token] - most) / temperature);
    sum += probabilities[token];
  }
  if (options.top_p < 1) {
    double kept = 0;
    const double wanted = options.top_p * sum;
    for (const std::size_t token : tokens) {
      if (kept >= wanted && kept > 0) {
        probabilities[token] = 0;
      } else {
        kept += probabilities[token];
      }
    }
    sum = kept;
  }
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

std::int64_t Sampler::next(std::span<const float> logits) {
  const std::vector<double> probabilities =
      token_probabilities(logits, options_);
  // std::uniform_real_distribution differs between standard libraries.
  double rest = static_cast<double>(random_() >> 11U) * 0x1p-53;
  std::size_t chosen = 0;
  for (std::size_t token = 0; token < probabilities.size(); ++token) {
    if (probabilities[token] == 0) continue;
    chosen = token;
    rest -= probabilities[token];
    if (rest < 0) break;
  }
  return static_cast<std::int64_t>(chosen);
}
