#include "train/plan/clocked.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

#include <ATen/Functions.h>

#include "big_model/model/synchronize.h"

namespace accelerate::detail {

namespace {

// Averages over the ranks, so that all plan with the same numbers.
double mean_over_ranks(const World& world, double value) {
  const at::Tensor sum = at::full({}, value, at::kDouble).to(world.device());
  world.group().all_reduce(sum);
  return sum.item<double>() / world.size();
}

}  // namespace

double Clocked::seconds_of(const std::function<void()>& call) {
  constexpr double kRoundSeconds = 0.05;
  constexpr std::size_t kRounds = 3;
  const double length = std::min(kRoundSeconds, left_ / (5 * kRounds));
  // The first call also maps memory and fills caches. If it takes long, there
  // is no time for many more anyway.
  double one = round(1, call);
  if (one < length) one = round(1, call);
  const int count = static_cast<int>(std::clamp(length / one, 1.0, 1000.0));
  const double least_left = left_ * 3 / 4;
  std::vector<double> seconds;
  do {
    seconds.push_back(round(count, call));
  } while (seconds.size() < kRounds &&
           left_ - count * seconds.back() > least_left);
  std::ranges::sort(seconds);
  return (seconds[(seconds.size() - 1) / 2] + seconds[seconds.size() / 2]) / 2;
}

double Clocked::round(int count, const std::function<void()>& call) {
  synchronize(world_.device());
  world_.wait_for_everyone();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) call();
  synchronize(world_.device());
  world_.wait_for_everyone();
  const std::chrono::duration<double> taken =
      std::chrono::steady_clock::now() - begin;
  const double seconds = mean_over_ranks(world_, taken.count());
  left_ -= seconds;
  return std::max(1e-9, seconds / count);
}

}  // namespace accelerate::detail
