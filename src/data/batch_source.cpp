#include <accelerate/data_loader.h>

#include <utility>

#include <accelerate/error.h>

#include "data/batch_plan.h"
#include "data/batch_turns.h"

namespace accelerate::detail {

namespace {

BatchPlan make_plan(
    std::int64_t num_samples,
    const DataLoaderOptions& options,
    const LoaderContext& context) {
  return BatchPlan(
      {.num_samples = num_samples,
       .batch_size = options.batch_size,
       .rank = context.batch_rank,
       .count = context.batch_count,
       .drop_last = options.drop_last,
       .split_batches = options.split_batches,
       .even_batches = options.even_batches});
}

// Of rounds that rank 0 reads whole.
BatchPlan make_round_plan(std::int64_t num_samples, const BatchPlan& plan, bool drop_last) {
  return BatchPlan(
      {.num_samples = num_samples, .batch_size = plan.round_size(), .drop_last = drop_last});
}

std::shared_ptr<Sampler> make_sampler(
    std::int64_t num_samples,
    const DataLoaderOptions& options) {
  if (options.sampler && options.shuffle) {
    throw ConfigError(
        "[data] both shuffle and a sampler were given; the sampler decides the order: unset shuffle");
  }
  if (options.batch_sampler &&
      (options.sampler || options.shuffle || options.split_batches || options.batch_size != 1)) {
    throw ConfigError(
        "[data] a batch_sampler was given beside batch_size, shuffle, sampler or split_batches; it "
        "alone decides which samples form a batch: unset them");
  }
  if (options.use_seedable_sampler && !options.shuffle) {
    throw ConfigError(
        "[data] use_seedable_sampler was given without shuffle, whose order it decides; set shuffle");
  }
  if (options.sampler) return options.sampler;
  if (!options.shuffle) return std::make_shared<SequentialSampler>(num_samples);
  if (options.use_seedable_sampler) return std::make_shared<RandomSampler>(num_samples);
  return std::make_shared<KeyedSampler>(num_samples);
}

}  // namespace

struct BatchSource::State {
  std::shared_ptr<Sampler> sampler;
  DataLoaderOptions options;
  LoaderContext context;
  BatchPlan plan;
  BatchPlan round_plan;
  bool is_dispatching = false;
  bool even_batches = true;
  std::uint64_t epoch = 0;
  bool is_reading = false;

  void make_plans() {
    DataLoaderOptions now = options;
    if (context.even_batches) {
      now.even_batches = context.even_batches().value_or(options.even_batches);
    }
    even_batches = now.even_batches;
    plan = make_plan(sampler->size(), now, context);
    round_plan = make_round_plan(sampler->size(), plan, options.drop_last);
  }
  [[nodiscard]] const BatchPlan& read_plan() const { return is_dispatching ? round_plan : plan; }
  // With a batch sampler.
  [[nodiscard]] BatchTurns turns() const {
    return {
        options.batch_sampler->size(), context.batch_rank, context.batch_count, options.drop_last,
        even_batches};
  }
};

BatchSource::BatchSource(std::int64_t num_samples, const DataLoaderOptions& options) {
  std::shared_ptr<Sampler> sampler = make_sampler(num_samples, options);
  const BatchPlan plan = make_plan(sampler->size(), options, {});
  state_ = std::make_unique<State>(State{
      .sampler = std::move(sampler),
      .options = options,
      .context = {},
      .plan = plan,
      .round_plan = plan});
}

BatchSource::~BatchSource() = default;
BatchSource::BatchSource(BatchSource&&) noexcept = default;
BatchSource& BatchSource::operator=(BatchSource&&) noexcept = default;

void BatchSource::attach(LoaderContext context, bool is_dispatching) {
  make_plan(state_->sampler->size(), state_->options, context);  // throws before anything changes
  if (is_dispatching && state_->options.batch_sampler) {
    throw ConfigError(
        "[data] dispatch_batches cuts rounds evenly, but a batch_sampler gives batches of its own "
        "sizes; unset one of them");
  }
  state_->context = std::move(context);
  state_->is_dispatching = is_dispatching;
  state_->make_plans();
}

bool BatchSource::is_dispatching() const { return state_->is_dispatching; }

const LoaderContext& BatchSource::context() const { return state_->context; }

std::int64_t BatchSource::size() const {
  return state_->options.batch_sampler ? state_->turns().size() : state_->read_plan().size();
}

std::int64_t BatchSource::round_size() const {
  return state_->options.batch_sampler ? 0 : state_->plan.round_size();
}

std::int64_t BatchSource::rank_batch_size() const {
  return state_->plan.round_size() / state_->context.batch_count;
}

bool BatchSource::fills_up() const {
  const LoaderContext& context = state_->context;
  return state_->even_batches && (context.batch_count > 1 || context.fills_up_alone);
}

std::uint64_t BatchSource::epoch() const { return state_->epoch; }

void BatchSource::set_epoch(std::uint64_t epoch) { state_->epoch = epoch; }

void BatchSource::begin_pass() {
  end_pass();
  state_->is_reading = true;
  state_->make_plans();
  const std::uint64_t seed = state_->options.data_seed.value_or(state_->context.seed);
  state_->sampler->begin_pass(seed, state_->epoch);
  if (state_->options.batch_sampler) state_->options.batch_sampler->begin_pass(seed, state_->epoch);
  if (state_->context.begin) state_->context.begin();
}

void BatchSource::end_pass() noexcept {
  if (!state_ || !state_->is_reading) return;
  state_->is_reading = false;
  ++state_->epoch;
  if (state_->context.end) state_->context.end();
}

std::vector<std::int64_t> BatchSource::indices(std::int64_t index) const {
  if (state_->options.batch_sampler) {
    return state_->options.batch_sampler->at(state_->turns().batch(index));
  }
  std::vector<std::int64_t> indices = state_->read_plan().positions(index);
  for (std::int64_t& i : indices) i = state_->sampler->at(i);
  return indices;
}

std::int64_t BatchSource::remainder(std::int64_t index) const {
  if (!state_->options.batch_sampler) return state_->plan.remainder(index);
  const BatchTurns turns = state_->turns();
  const std::int64_t num_real = turns.num_real(index);
  if (num_real == turns.count || !turns.even_batches) return 0;
  std::int64_t samples = 0;
  for (std::int64_t i = 0; i < num_real; ++i) {
    const auto batch = state_->options.batch_sampler->at(index * turns.count + i);
    samples += static_cast<std::int64_t>(batch.size());
  }
  return samples;
}

void BatchSource::announce(bool is_last, std::int64_t remainder) const {
  if (state_->context.on_batch) state_->context.on_batch(is_last, remainder);
}

void throw_shuffled_stream() {
  throw ConfigError(
      "[data] shuffle was asked for, but a stream gives its samples in its own order; shuffle in "
      "the dataset's next(), or offer size() and get(index)");
}

void throw_not_dispatchable() {
  throw ConfigError(
      "[data] dispatch_batches needs batches that can be cut and sent: nested tensors (nested.h) "
      "or a vector of objects (objects.h), default-constructible; this loader's are neither");
}

}  // namespace accelerate::detail
