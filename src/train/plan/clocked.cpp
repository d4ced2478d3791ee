#include "train/plan/clocked.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include <ATen/Functions.h>

#include "big_model/model/synchronize.h"

namespace accelerate::detail {

namespace {

// The mean over the ranks, so that all plan with the same numbers.
double mean_over_ranks(const World& world, double value) {
  const at::Tensor sum = at::full({}, value, at::kDouble).to(world.device());
  world.group().all_reduce(sum);
  return sum.item<double>() / world.size();
}

}  // namespace

double Clocked::seconds_of(const std::function<void()>& call) const {
  constexpr double kRoundSeconds = 0.05;
  constexpr int kRounds = 3;
  static_cast<void>(round(1, call));
  const double first = round(1, call);
  const int count =
      static_cast<int>(std::clamp(kRoundSeconds / first, 1.0, 1000.0));
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) seconds.push_back(round(count, call));
  std::sort(seconds.begin(), seconds.end());
  return seconds[kRounds / 2];
}

double Clocked::round(int count, const std::function<void()>& call) const {
  synchronize(world_.device());
  world_.wait_for_everyone();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) call();
  synchronize(world_.device());
  world_.wait_for_everyone();
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  return std::max(1e-9, mean_over_ranks(world_, taken.count()) / count);
}

}  // namespace accelerate::detail
