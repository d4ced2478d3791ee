#include <accelerate/samplers.h>

#include <algorithm>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "data/order/permutation.h"
#include "data/order/sampler_position.h"

namespace accelerate {

using detail::format;

Sampler::~Sampler() = default;

struct KeyedSampler::State {
  std::int64_t num_samples;
  std::optional<detail::Permutation> order;
};

void detail::require_position(std::int64_t position, std::int64_t size) {
  if (position >= 0 && position < size) return;
  throw DataError(format(
      "[data] position {} of a sampler was requested, but its pass has {}; "
      "call begin_pass() first, and ask for positions from 0 to size() - 1",
      position,
      size));
}

KeyedSampler::KeyedSampler(std::int64_t num_samples)
    : state_(std::make_unique<State>(State{num_samples, {}})) {}

KeyedSampler::~KeyedSampler() = default;

std::int64_t KeyedSampler::size() const { return state_->num_samples; }

void KeyedSampler::begin_pass(std::uint64_t seed, std::uint64_t epoch) {
  state_->order.emplace(state_->num_samples, seed, epoch);
}

std::int64_t KeyedSampler::at(std::int64_t position) const {
  detail::require_position(
      position, state_->order ? state_->num_samples : std::int64_t{0});
  return (*state_->order)(position);
}

namespace {

void append(
    std::vector<std::int64_t>& order,
    const at::Tensor& indices,
    std::int64_t count) {
  const auto* const data = indices.const_data_ptr<std::int64_t>();
  order.insert(order.end(), data, data + count);
}

std::vector<std::int64_t> draw(
    std::int64_t dataset_size,
    const RandomSamplerOptions& options,
    at::Generator& generator) {
  const std::int64_t count = options.num_samples.value_or(dataset_size);
  // PyTorch draws in chunks of this size.
  constexpr std::int64_t kChunk = 32;
  const std::int64_t chunk = options.replacement ? kChunk : dataset_size;
  std::vector<std::int64_t> order;
  order.reserve(static_cast<std::size_t>(count));
  for (std::int64_t left = count; left > 0; left -= chunk) {
    const std::int64_t size = std::min(left, chunk);
    append(
        order,
        options.replacement
            ? at::randint(0, dataset_size, {size}, generator, at::kLong)
            : at::randperm(dataset_size, generator, at::kLong),
        size);
  }
  return order;
}

}  // namespace

std::vector<std::int64_t> random_order(
    std::int64_t dataset_size,
    const RandomSamplerOptions& options,
    at::Generator& generator) {
  std::vector<std::int64_t> order = draw(dataset_size, options, generator);
  // PyTorch draws a last permutation even if it needs none of its values.
  const auto count = static_cast<std::int64_t>(order.size());
  if (!options.replacement && dataset_size > 0 && count % dataset_size == 0) {
    static_cast<void>(at::randperm(dataset_size, generator, at::kLong));
  }
  return order;
}

RandomSampler::RandomSampler(
    std::int64_t dataset_size,
    const RandomSamplerOptions& options)
    : dataset_size_(dataset_size), options_(options) {
  const std::int64_t count = options.num_samples.value_or(dataset_size);
  if (dataset_size < 0 || count < 0 || (dataset_size == 0 && count > 0)) {
    throw ConfigError(format(
        "[data] RandomSampler cannot draw {} samples from {}",
        count,
        dataset_size));
  }
}

std::int64_t RandomSampler::size() const {
  return options_.num_samples.value_or(dataset_size_);
}

void RandomSampler::begin_pass(std::uint64_t seed, std::uint64_t epoch) {
  at::Generator generator = at::detail::createCPUGenerator(seed + epoch);
  order_ = draw(dataset_size_, options_, generator);
}

std::int64_t RandomSampler::at(std::int64_t position) const {
  detail::require_position(position, std::ssize(order_));
  return order_[static_cast<std::size_t>(position)];
}

WeightedRandomSampler::WeightedRandomSampler(
    std::vector<double> weights,
    std::int64_t num_samples,
    bool replacement)
    : weights_(
          at::empty({static_cast<std::int64_t>(weights.size())}, at::kDouble)),
      num_samples_(num_samples),
      replacement_(replacement) {
  std::ranges::copy(weights, weights_.mutable_data_ptr<double>());
  const auto num_possible =
      std::ranges::count_if(weights, [](double weight) { return weight > 0; });
  const bool has_invalid = std::ranges::any_of(
      weights, [](double weight) { return !(weight >= 0); });
  if (has_invalid || num_samples < 0 ||
      (num_samples > 0 && num_possible == 0) ||
      (!replacement && num_samples > num_possible)) {
    throw ConfigError(format(
        "[data] WeightedRandomSampler cannot draw {} samples {} replacement: "
        "of {} weights, {} are above 0{}",
        num_samples,
        replacement ? "with" : "without",
        weights.size(),
        num_possible,
        has_invalid ? ", and some are negative or NaN" : ""));
  }
}

void WeightedRandomSampler::begin_pass(
    std::uint64_t seed,
    std::uint64_t epoch) {
  const at::Generator generator = at::detail::createCPUGenerator(seed + epoch);
  order_ = num_samples_ == 0
      ? at::empty({0}, at::kLong)
      : at::multinomial(weights_, num_samples_, replacement_, generator);
}

std::int64_t WeightedRandomSampler::at(std::int64_t position) const {
  detail::require_position(position, order_.defined() ? order_.numel() : 0);
  return order_.const_data_ptr<std::int64_t>()[position];
}

}  // namespace accelerate
