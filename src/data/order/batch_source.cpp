#include "data/order/batch_source.h"

#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "data/mix.h"
#include "data/order/batch_order.h"
#include "data/order/loader_agreement.h"
#include "data/order/loader_options.h"

namespace accelerate::detail {

namespace {

BatchSamplerShard make_batch_shard(
    std::int64_t num_samples,
    const DataLoaderOptions& options,
    int share,
    int num_shares,
    std::int64_t first = 0) {
  return BatchSamplerShard(
      {.num_samples = num_samples,
       .first = first,
       .batch_size = options.batch_size,
       .rank = share,
       .count = num_shares,
       .drop_last = options.drop_last,
       .split_batches = *options.split_batches,
       .even_batches = *options.even_batches});
}

}  // namespace

void throw_nested_pass(std::uint64_t epoch, std::int64_t num_batches) {
  throw ConfigError(format(
      "[data] a pass over this loader began inside another pass over it, which "
      "is in epoch {} after {} batches; leave that loop first, or make a "
      "second loader",
      epoch,
      num_batches));
}

std::uint64_t seed_at(std::uint64_t pass_seed, std::int64_t position) {
  return mix(pass_seed ^ static_cast<std::uint64_t>(position));
}

struct BatchSource::State {
  DatasetFacts dataset;
  /// The loader's own options, and the same with defaults in unset fields.
  DataLoaderOptions given;
  DataLoaderOptions options;
  LoaderContext context = {};
  /// The user's sampler, or the one that `shuffle` asks for.
  std::shared_ptr<Sampler> sampler = nullptr;
  std::unique_ptr<BatchOrder> order = nullptr;
  /// Samples per rank in a full round.
  std::int64_t rank_batch_size = 1;
  bool is_attached = false;
  bool is_dispatching = false;
  bool even_batches = true;
  /// True once the warning that rounds stay even in join_uneven_inputs() was
  /// given.
  bool has_warned = false;
  std::uint64_t epoch = 0;
  bool is_reading = false;
  /// Epoch of the current pass; set_epoch may already have set the next one.
  std::uint64_t pass_epoch = 0;
  /// Positions at which the current pass began and the next one will begin.
  std::int64_t first = 0;
  std::int64_t next_first = 0;

  [[nodiscard]] int share() const {
    return options.already_sharded ? 0 : context.batch_rank;
  }
  [[nodiscard]] int num_shares() const {
    return options.already_sharded ? 1 : context.batch_count;
  }
  [[nodiscard]] std::uint64_t seed() const {
    return options.data_seed.value_or(context.seed);
  }
  void make_sampler() {
    const std::int64_t size = std::max<std::int64_t>(dataset.num_samples, 0);
    if (options.sampler) {
      sampler = options.sampler;
    } else if (!options.shuffle) {
      sampler = std::make_shared<SequentialSampler>(size);
    } else if (*options.use_seedable_sampler) {
      sampler = std::make_shared<RandomSampler>(size);
    } else {
      sampler = std::make_shared<KeyedSampler>(size);
    }
  }
  void make_order() {
    DataLoaderOptions now = options;
    if (context.even_batches) {
      now.even_batches = context.even_batches().value_or(*options.even_batches);
    }
    even_batches = *now.even_batches;
    const std::int64_t begin = is_reading ? first : next_first;
    if (options.batch_sampler) {
      order = std::make_unique<BatchSamplerOrder>(
          options.batch_sampler,
          BatchRoundRobin{
              options.batch_sampler->size(),
              begin,
              share(),
              num_shares(),
              options.drop_last,
              even_batches});
      return;
    }
    const BatchSamplerShard shared =
        make_batch_shard(sampler->size(), now, share(), num_shares(), begin);
    rank_batch_size = shared.round_size() / num_shares();
    const BatchSamplerShard full_rounds(
        {.num_samples = sampler->size(),
         .first = begin,
         .batch_size = shared.round_size(),
         .drop_last = options.drop_last});
    order = std::make_unique<SampleOrder>(
        sampler, shared, is_dispatching ? full_rounds : shared);
  }
};

BatchSource::BatchSource(
    const DatasetFacts& dataset,
    const DataLoaderOptions& options) {
  require_consistent(dataset, options);
  state_ = std::make_unique<State>(State{
      .dataset = dataset,
      .given = options,
      .options = with_defaults(options, {})});
  state_->make_sampler();
  state_->make_order();
}

BatchSource::~BatchSource() = default;

void BatchSource::attach(LoaderContext context, bool dispatches) {
  if (state_->is_attached) {
    throw ConfigError(
        "[data] this loader has already been prepared, so its ranks read "
        "shards of the data; prepare it only once");
  }
  State now{
      .dataset = state_->dataset,
      .given = state_->given,
      .options = with_defaults(state_->given, context.defaults),
      .epoch = state_->epoch,
      .next_first = state_->next_first};
  require_attachable(now.dataset, now.given, now.options, dispatches);
  now.make_sampler();
  const bool is_sharded = now.options.already_sharded;
  // Throw for sizes that do not fit.
  make_batch_shard(
      now.sampler->size(),
      now.options,
      is_sharded ? 0 : context.batch_rank,
      is_sharded ? 1 : context.batch_count);
  now.is_dispatching = dispatches && context.group.size() > 1;
  if (context.group.size() > 1) {
    require_equal_loaders(
        context.group,
        now.dataset,
        now.options,
        *now.sampler,
        context.seed,
        now.is_dispatching);
  }
  if (now.options.pin_memory && context.device.is_cpu()) {
    context.logger.log_once_per_world(
        LogLevel::info,
        "data",
        "pin_memory has no effect: there is no accelerator whose copies it "
        "would speed up");
  }
  now.context = std::move(context);
  now.is_attached = true;
  now.make_order();
  *state_ = std::move(now);
}

const DataLoaderOptions& BatchSource::given() const { return state_->given; }

bool BatchSource::is_dispatching() const { return state_->is_dispatching; }

const LoaderContext& BatchSource::context() const { return state_->context; }

std::int64_t BatchSource::size() const { return state_->order->size(); }

std::int64_t BatchSource::round_size() const {
  const int num_shards =
      state_->options.already_sharded ? state_->context.batch_count : 1;
  return state_->order->round_size() * num_shards;
}

std::int64_t BatchSource::rank_batch_size() const {
  return state_->rank_batch_size;
}

int BatchSource::share() const { return state_->share(); }

int BatchSource::num_shares() const { return state_->num_shares(); }

bool BatchSource::fills_up() const {
  return state_->even_batches &&
      (state_->num_shares() > 1 || state_->context.fills_up_alone);
}

std::uint64_t BatchSource::epoch() const { return state_->epoch; }

void BatchSource::set_epoch(std::uint64_t epoch) { state_->epoch = epoch; }

std::int64_t BatchSource::first() const {
  return state_->is_reading ? state_->first : state_->next_first;
}

bool BatchSource::is_reading() const { return state_->is_reading; }

StateDict BatchSource::state_dict(std::int64_t num_given, bool has_ended)
    const {
  const State& now = *state_;
  const std::int64_t moved =
      now.is_reading ? num_given * now.order->positions_in_round() : 0;
  StateDict state{
      {"epoch", static_cast<std::int64_t>(now.epoch + (has_ended ? 1 : 0))},
      {"position", has_ended ? 0 : first() + moved},
      {"seed", static_cast<std::int64_t>(now.seed())}};
  // Positions in a shard are meaningless for another number of shards.
  if (now.options.already_sharded) {
    state.set("num_shards", static_cast<std::int64_t>(now.context.batch_count));
  }
  return state;
}

void BatchSource::load_state_dict(const StateDict& state) {
  const auto epoch = state.get<std::int64_t>("epoch");
  const auto position = state.get<std::int64_t>("position");
  const auto seed = state.get<std::int64_t>("seed");
  const std::int64_t num_shards =
      state.contains("num_shards") ? state.get<std::int64_t>("num_shards") : 0;
  if (state_->is_reading) {
    throw ConfigError(
        "[data] load_state_dict() was called inside a pass over this loader; "
        "leave the loop first");
  }
  if (epoch < 0 || position < 0) {
    throw CheckpointError(format(
        "[data] the epoch and the position in the state of a loader must be at "
        "least 0, but are {} and {}",
        epoch,
        position));
  }
  const std::int64_t shards_now =
      state_->options.already_sharded ? state_->context.batch_count : 0;
  if (num_shards != shards_now && position > 0) {
    throw CheckpointError(format(
        "[data] the state of a loader was saved with data sharded by the user "
        "over {} ranks (0: by the loader), but now there are {}; resume such "
        "data in the middle of a pass on the same number of ranks",
        num_shards,
        shards_now));
  }
  // Negative if unknown.
  const std::int64_t length = state_->dataset.is_stream
      ? state_->dataset.num_samples
      : state_->order->length();
  // The saved pass had ended.
  const bool has_ended = length >= 0 && position >= length && position > 0;
  state_->epoch = static_cast<std::uint64_t>(epoch) + (has_ended ? 1 : 0);
  state_->next_first = has_ended ? 0 : position;
  state_->options.data_seed = static_cast<std::uint64_t>(seed);
  state_->given.data_seed = state_->options.data_seed;
  state_->make_order();
}

void BatchSource::begin_pass(std::int64_t num_samples) {
  end_pass();
  State& now = *state_;
  if (num_samples != now.dataset.num_samples) {
    now.dataset.num_samples = num_samples;
    now.make_sampler();
  }
  now.is_reading = true;
  now.pass_epoch = now.epoch;
  now.first = std::exchange(now.next_first, 0);
  // Comes first, since it may synchronise generators that a sampler draws from.
  if (now.context.begin) now.context.begin();
  if (now.is_dispatching && now.context.even_batches &&
      !now.context.even_batches().value_or(true) &&
      !std::exchange(now.has_warned, true)) {
    now.context.logger.log_once_per_world(
        LogLevel::warning,
        "data",
        "even_batches = false does not change loaders that rank 0 reads for "
        "all (dispatch_batches): they cut every round evenly");
  }
  now.sampler->begin_pass(now.seed(), now.epoch);
  if (now.options.batch_sampler)
    now.options.batch_sampler->begin_pass(now.seed(), now.epoch);
  now.make_order();
}

void BatchSource::abandon_pass() noexcept {
  state_->is_reading = false;
  ++state_->epoch;
  if (state_->context.end) state_->context.end();
}

void BatchSource::end_pass() noexcept {
  if (!state_->is_reading) return;
  state_->is_reading = false;
  ++state_->epoch;
  state_->first = 0;
  state_->make_order();
  if (state_->context.end) state_->context.end();
}

BatchIndices BatchSource::at(std::int64_t index) const {
  BatchIndices batch = state_->order->at(index);
  batch.pass_seed = pass_seed();
  const std::int64_t size = state_->dataset.num_samples;
  for (const std::int64_t i : batch.indices) {
    if (i < 0 || (size >= 0 && i >= size)) {
      throw ConfigError(format(
          "[data] the sampler returned index {} for batch {}, but the dataset "
          "has {} samples, whose indices begin at 0",
          i,
          index,
          size));
    }
  }
  return batch;
}

std::uint64_t BatchSource::pass_seed() const {
  return mix(mix(state_->seed()) ^ state_->pass_epoch);
}

void BatchSource::announce(bool is_last, std::int64_t remainder) const {
  if (state_->context.on_batch) state_->context.on_batch(is_last, remainder);
}

}  // namespace accelerate::detail
