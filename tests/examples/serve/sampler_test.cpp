// Laws of sampling: which tokens may be chosen, how often, and that a seed repeats them.
#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "laws/check.h"
#include "support/expect_error.h"

namespace accelerate::testing::sampler_test {

std::vector<float> any_logits() {
  // Halves, so that many are equal.
  auto logits = *rc::gen::nonEmpty(rc::gen::container<std::vector<float>>(
      rc::gen::map(rc::gen::inRange(-20, 20), [](int half) {
        return static_cast<float>(half) / 2;
      })));
  if (logits.size() > 1 && *rc::gen::arbitrary<bool>())
    logits.back() = -std::numeric_limits<float>::infinity();
  return logits;
}

SamplingOptions any_options() {
  return {
      .temperature = *rc::gen::inRange(1, 40) / 10.0,
      .top_k = *rc::gen::inRange(0, 12),
      .top_p = *rc::gen::inRange(1, 101) / 100.0,
      .seed = *rc::gen::arbitrary<std::uint64_t>()};
}

double softmax_of(
    const std::vector<float>& logits,
    std::size_t token,
    double temperature) {
  const double most = *std::max_element(logits.begin(), logits.end());
  return std::exp((logits[token] - most) / temperature);
}

// Tokens from the most to the least probable.
std::vector<std::size_t> ranking(const std::vector<float>& logits) {
  std::vector<std::size_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), std::size_t{0});
  std::stable_sort(
      tokens.begin(), tokens.end(), [&](std::size_t a, std::size_t b) {
        return logits[a] > logits[b];
      });
  return tokens;
}

TEST(Sampler, KeepsTheMostProbableTokensInProportion) {
  expect_law(300, [] {
    const auto logits = any_logits();
    const auto options = any_options();
    const auto found = token_probabilities(logits, options);
    RC_ASSERT(found.size() == logits.size());
    RC_ASSERT(
        std::abs(std::accumulate(found.begin(), found.end(), 0.0) - 1) < 1e-12);
    const auto tokens = ranking(logits);
    std::size_t num_kept = 0;
    double all = 0;
    const std::size_t most = options.top_k == 0
        ? logits.size()
        : std::min<std::size_t>(options.top_k, logits.size());
    for (std::size_t i = 0; i < most; ++i)
      all += softmax_of(logits, tokens[i], options.temperature);
    double kept = 0;
    double before_last = 0;
    for (; num_kept < tokens.size() && found[tokens[num_kept]] > 0;
         ++num_kept) {
      before_last = kept;
      kept += softmax_of(logits, tokens[num_kept], options.temperature) / all;
    }
    // No other token has a probability.
    for (std::size_t i = num_kept; i < tokens.size(); ++i)
      RC_ASSERT(found[tokens[i]] == 0.0);
    RC_ASSERT(num_kept >= 1U);
    RC_ASSERT(num_kept <= most);
    // As few as reach top_p.
    RC_ASSERT(kept >= options.top_p - 1e-9);
    RC_ASSERT(before_last < options.top_p + 1e-9);
    for (std::size_t i = 0; i < num_kept; ++i) {
      const double expected =
          softmax_of(logits, tokens[i], options.temperature) / all / kept;
      RC_ASSERT(std::abs(found[tokens[i]] - expected) < 1e-12);
    }
  });
}

TEST(Sampler, ChoosesOnlyTokensThatHaveAProbabilityAndRepeatsThem) {
  expect_law(100, [] {
    const auto logits = any_logits();
    const auto options = any_options();
    const auto probabilities = token_probabilities(logits, options);
    Sampler first(options);
    Sampler second(options);
    for (int i = 0; i < 20; ++i) {
      const std::int64_t token = first.next(logits);
      RC_ASSERT(probabilities.at(static_cast<std::size_t>(token)) > 0);
      RC_ASSERT(token == second.next(logits));
    }
  });
}

TEST(Sampler, WithoutTemperatureIsGreedyAndLowTemperaturesApproachIt) {
  expect_law(200, [] {
    const auto logits = any_logits();
    auto options = any_options();
    options.temperature = 0;
    const auto best = static_cast<std::int64_t>(ranking(logits)[0]);
    RC_ASSERT(Sampler(options).next(logits) == best);
    const auto greedy = token_probabilities(logits, options);
    RC_ASSERT(greedy.at(static_cast<std::size_t>(best)) == 1.0);
    const float second = [&] {
      float most = -std::numeric_limits<float>::infinity();
      for (std::size_t i = 0; i < logits.size(); ++i) {
        if (static_cast<std::int64_t>(i) != best)
          most = std::max(most, logits[i]);
      }
      return most;
    }();
    if (second == logits[static_cast<std::size_t>(best)]) return;
    options.temperature = 1e-3;
    RC_ASSERT(token_probabilities(logits, options) == greedy);
    options.temperature = 1e-300;
    RC_ASSERT(token_probabilities(logits, options) == greedy);
  });
}

TEST(Sampler, ChoosesTokensAsOftenAsTheirProbabilitySays) {
  const std::vector<float> logits = {0, 1, 2, -1, 3};
  const SamplingOptions options{.temperature = 1.5, .top_k = 4, .seed = 3};
  const auto probabilities = token_probabilities(logits, options);
  Sampler sampler(options);
  constexpr int kDraws = 20000;
  std::vector<int> counts(logits.size());
  for (int i = 0; i < kDraws; ++i)
    ++counts[static_cast<std::size_t>(sampler.next(logits))];
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double p = probabilities[i];
    EXPECT_NEAR(
        counts[i] / double{kDraws}, p, 4 * std::sqrt(p * (1 - p) / kDraws));
  }
}

// mt19937_64 and the arithmetic are those of every machine.
TEST(Sampler, GivesTheSameTokensOnEveryMachine) {
  const std::vector<float> logits(1000);
  Sampler sampler({.temperature = 1, .seed = 5489});
  std::vector<std::int64_t> tokens;
  for (int i = 0; i < 3; ++i) tokens.push_back(sampler.next(logits));
  // The generator's first numbers are 14514284786278117030,
  // 4620546740167642908 and 13109570281517897720 of 2^64.
  EXPECT_EQ(tokens, (std::vector<std::int64_t>{786, 250, 710}));
}

TEST(Sampler, RefusesLogitsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), infinity}) {
    const std::vector<float> logits = {0, bad};
    expect_error<std::runtime_error>(
        [&] { (void)token_probabilities(logits, {}); }, "that are not finite");
  }
  const std::vector<float> none = {-infinity, -infinity};
  expect_error<std::runtime_error>(
      [&] { (void)token_probabilities(none, {.temperature = 1}); },
      "gives no token a probability");
}

}  // namespace accelerate::testing::sampler_test
