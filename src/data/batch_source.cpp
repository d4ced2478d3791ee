#include <accelerate/data_loader.h>

#include <utility>

#include <accelerate/error.h>

#include "base/text.h"
#include "data/batch_plan.h"
#include "data/batch_turns.h"

namespace accelerate::detail {

namespace {

BatchPlan make_plan(
    std::int64_t num_samples,
    const DataLoaderOptions& options,
    const LoaderContext& context,
    std::int64_t first = 0) {
  return BatchPlan(
      {.num_samples = num_samples,
       .first = first,
       .batch_size = options.batch_size,
       .rank = context.batch_rank,
       .count = context.batch_count,
       .drop_last = options.drop_last,
       .split_batches = options.split_batches,
       .even_batches = options.even_batches});
}

// Of rounds that rank 0 reads whole.
BatchPlan make_round_plan(
    std::int64_t num_samples,
    const BatchPlan& plan,
    bool drop_last,
    std::int64_t first) {
  return BatchPlan(
      {.num_samples = num_samples,
       .first = first,
       .batch_size = plan.round_size(),
       .drop_last = drop_last});
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
  /// Where the pass under way began, and where the next one will.
  std::int64_t first = 0;
  std::int64_t next_first = 0;

  void make_plans() {
    DataLoaderOptions now = options;
    if (context.even_batches) {
      now.even_batches = context.even_batches().value_or(options.even_batches);
    }
    even_batches = now.even_batches;
    const std::int64_t begin = is_reading ? first : next_first;
    plan = make_plan(sampler->size(), now, context, begin);
    round_plan = make_round_plan(sampler->size(), plan, options.drop_last, begin);
  }
  [[nodiscard]] const BatchPlan& read_plan() const { return is_dispatching ? round_plan : plan; }
  // With a batch sampler.
  [[nodiscard]] BatchTurns turns() const {
    return {
        options.batch_sampler->size(), is_reading ? first : next_first, context.batch_rank, context.batch_count, options.drop_last,
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

std::uint64_t BatchSource::seed() const {
  return state_->options.data_seed.value_or(state_->context.seed);
}

std::int64_t BatchSource::first() const {
  return state_->is_reading ? state_->first : state_->next_first;
}

StateDict BatchSource::state_dict(std::int64_t num_given) const {
  // Of samples; with a batch sampler, of batches.
  const std::int64_t unit =
      state_->options.batch_sampler ? state_->context.batch_count : state_->plan.round_size();
  return {
      {"epoch", static_cast<std::int64_t>(state_->epoch)},
      {"position", first() + (state_->is_reading ? num_given * unit : 0)},
      {"seed", static_cast<std::int64_t>(seed())}};
}

void BatchSource::load_state_dict(const StateDict& state, std::int64_t num_samples) {
  const auto epoch = state.get<std::int64_t>("epoch");
  const auto position = state.get<std::int64_t>("position");
  const auto seed = state.get<std::int64_t>("seed");
  if (state_->is_reading) {
    throw ConfigError(
        "[data] load_state_dict was called inside a pass over this loader; leave the loop first");
  }
  if (epoch < 0 || position < 0) {
    throw CheckpointError(concat(
        "[data] the state of a loader says epoch ", epoch, " and position ", position,
        "; neither can be below 0"));
  }
  // The pass had ended.
  const bool has_ended = num_samples >= 0 && position >= num_samples;
  state_->epoch = static_cast<std::uint64_t>(epoch) + (has_ended ? 1 : 0);
  state_->next_first = has_ended ? 0 : position;
  state_->options.data_seed = static_cast<std::uint64_t>(seed);
  state_->make_plans();
}

void BatchSource::begin_pass() {
  end_pass();
  state_->is_reading = true;
  state_->first = std::exchange(state_->next_first, 0);
  state_->make_plans();
  const std::uint64_t seed = this->seed();
  state_->sampler->begin_pass(seed, state_->epoch);
  if (state_->options.batch_sampler) state_->options.batch_sampler->begin_pass(seed, state_->epoch);
  if (state_->context.begin) state_->context.begin();
}

void BatchSource::end_pass() noexcept {
  if (!state_ || !state_->is_reading) return;
  state_->is_reading = false;
  ++state_->epoch;
  state_->first = 0;
  state_->make_plans();
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
