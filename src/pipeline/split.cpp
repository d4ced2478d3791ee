#include "pipeline/split.h"

#include <algorithm>
#include <limits>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr double kUnreached = std::numeric_limits<double>::infinity();

// Returns the best division, by dynamic programming over the layers before each
// place, one stage at a time. `weigh(so_far, stage)` measures a division, given
// the measure of its earlier stages and the cost of its last one.
template <class Weigh>
std::vector<std::size_t> best_division(
    std::span<const double> costs,
    std::size_t num_stages,
    Weigh&& weigh) {
  const std::size_t n = costs.size();
  std::vector<double> sums(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  std::vector<double> best(n + 1, kUnreached);
  best[0] = 0;
  std::vector<std::vector<std::size_t>> begins(num_stages);
  for (auto& begin : begins) begin.assign(n + 1, 0);
  for (std::size_t stage = 0; stage < num_stages; ++stage) {
    std::vector<double> next(n + 1, kUnreached);
    for (std::size_t end = stage + 1; end <= n; ++end) {
      for (std::size_t begin = stage; begin < end; ++begin) {
        if (best[begin] == kUnreached) continue;
        const double measure = weigh(best[begin], sums[end] - sums[begin]);
        if (measure >= next[end]) continue;
        next[end] = measure;
        begins[stage][end] = begin;
      }
    }
    best = std::move(next);
  }
  std::vector<std::size_t> division(num_stages);
  std::size_t end = n;
  for (std::size_t stage = num_stages; stage-- > 0;) {
    division[stage] = begins[stage][end];
    end = division[stage];
  }
  return division;
}

double most_expensive(
    std::span<const double> costs,
    const std::vector<std::size_t>& division) {
  double most = 0;
  for (std::size_t stage = 0; stage < division.size(); ++stage) {
    const std::size_t end =
        stage + 1 < division.size() ? division[stage + 1] : costs.size();
    double sum = 0;
    for (std::size_t i = division[stage]; i < end; ++i) sum += costs[i];
    most = std::max(most, sum);
  }
  return most;
}

std::vector<std::size_t> find_points(
    const std::vector<std::string>& layers,
    const std::vector<std::string>& points) {
  std::vector<std::size_t> begins{0};
  for (const std::string& point : points) {
    const auto found = std::find(layers.begin(), layers.end(), point);
    if (found == layers.end()) {
      throw ConfigError(format(
          "[pipeline] split point \"{}\" must be a "
          "layer, but the layers are {}",
          point,
          join(layers, ", ")));
    }
    const auto index = static_cast<std::size_t>(found - layers.begin());
    if (index <= begins.back()) {
      throw ConfigError(format(
          "[pipeline] split point \"{}\" {}; name the first layer of each "
          "stage but the first, in order",
          point,
          index == 0 ? "is the first layer"
                     : "does not come after the others"));
    }
    begins.push_back(index);
  }
  return begins;
}

}  // namespace

std::vector<std::size_t> balanced_stages(
    std::span<const double> costs,
    int num_stages) {
  const auto stages = static_cast<std::size_t>(num_stages);
  const auto first =
      best_division(costs, stages, [](double so_far, double stage) {
        return std::max(so_far, stage);
      });
  // Sums in a different order can differ by rounding.
  const double limit = most_expensive(costs, first) * (1 + 1e-9);
  return best_division(costs, stages, [limit](double so_far, double stage) {
    return stage > limit ? kUnreached : so_far + stage * stage;
  });
}

void require_num_points(std::size_t num_points, int num_stages) {
  if (num_points + 1 == static_cast<std::size_t>(num_stages)) return;
  throw ConfigError(format(
      "[pipeline] {} split points make {} stages, but there are {}; name the "
      "first layer of each stage but the first",
      num_points,
      num_points + 1,
      num_stages));
}

std::vector<std::size_t> divide_layers(
    const std::vector<std::string>& layers,
    const std::vector<std::string>& split_points,
    const std::vector<double>& costs,
    int num_stages) {
  if (layers.size() < static_cast<std::size_t>(num_stages)) {
    throw ConfigError(format(
        "[pipeline] {} layers cannot be divided into {} stages; add layers, or "
        "lower pipeline (or num_chunks)",
        layers.size(),
        num_stages));
  }
  if (!split_points.empty()) {
    require_num_points(split_points.size(), num_stages);
    return find_points(layers, split_points);
  }
  if (costs.size() != layers.size()) {
    throw ConfigError(format(
        "[pipeline] there must be one cost per layer, but "
        "there are {} for {} layers",
        costs.size(),
        layers.size()));
  }
  for (std::size_t i = 0; i < costs.size(); ++i) {
    if (!(costs[i] >= 0) || costs[i] == kUnreached) {
      throw ConfigError(format(
          "[pipeline] the cost of layer \"{}\" is {}, but must be finite and "
          "at least 0",
          layers[i],
          costs[i]));
    }
  }
  return balanced_stages(costs, num_stages);
}

}  // namespace accelerate::detail
