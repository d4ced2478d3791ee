#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

/// How the next token is chosen, in this order: temperature, top_k, top_p.
struct SamplingOptions {
  /// Divides the logits. 0 always takes the most probable token.
  double temperature = 0;
  /// Only the most probable tokens, this many. 0: all.
  std::int64_t top_k = 0;
  /// The most probable of these until their probabilities add up to this. 1:
  /// all.
  double top_p = 1;
  std::uint64_t seed = 0;
};

/// The probability of each token. Of tokens with equal logits, the first ones
/// are the more probable. Throws std::runtime_error if a logit is NaN or
/// infinite, or all are -infinity.
std::vector<double> token_probabilities(
    std::span<const float> logits,
    const SamplingOptions& options);

/// Chooses tokens. The same logits and seed give the same tokens everywhere.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options)
      : options_(options), random_(options.seed) {}

  std::int64_t next(std::span<const float> logits);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};
