#include <accelerate/detail/batch_source.h>

#include <string>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "data/mix.h"
#include "data/order/batch_order.h"

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

// `options` may have unset fields, or the accelerator's defaults in them.
void require_consistent(
    const DatasetFacts& dataset,
    const DataLoaderOptions& options) {
  const bool splits = options.split_batches.value_or(false);
  std::string complaints;
  const auto complain = [&](bool is_wrong, std::string_view what) {
    if (is_wrong)
      complaints += format("{}{}", complaints.empty() ? "" : "; ", what);
  };
  complain(
      options.sampler && options.shuffle,
      "both shuffle and a sampler were given; the sampler decides the order: "
      "unset shuffle");
  complain(
      options.batch_sampler &&
          (options.sampler || options.shuffle || splits ||
           options.batch_size != 1),
      "a batch_sampler was given together with batch_size, shuffle, sampler or "
      "split_batches; it alone "
      "decides which samples form a batch: unset them");
  complain(
      options.use_seedable_sampler.value_or(false) && !options.shuffle,
      "use_seedable_sampler was given without shuffle, whose order it decides; "
      "set shuffle");
  complain(
      dataset.is_stream &&
          (options.shuffle || options.sampler || options.batch_sampler),
      "shuffle or a sampler was given, but a stream gives its samples in its "
      "own order; shuffle in the dataset's next(), or offer size() and "
      "get(index)");
  complain(
      options.num_workers < 0,
      format("num_workers is {}; it is at least 0", options.num_workers));
  complain(
      options.prefetch_factor.value_or(1) < 1,
      format(
          "prefetch_factor is {}; it is at least 1",
          options.prefetch_factor.value_or(1)));
  complain(
      options.timeout.count() < 0,
      format(
          "timeout is {} ms; it is at least 0, which means no limit",
          options.timeout.count()));
  complain(
      options.num_workers == 0 &&
          (options.prefetch_factor || options.timeout.count() > 0 ||
           !options.in_order),
      "prefetch_factor, timeout or in_order was given without workers, to "
      "which it applies; set num_workers");
  complain(
      options.already_sharded && options.dispatch_batches.value_or(false),
      "already_sharded says that each rank reads its own shard, "
      "dispatch_batches that rank 0 reads for all; unset one of them");
  complain(
      options.already_sharded && splits,
      "already_sharded says that each rank reads its own shard, split_batches "
      "that batches are cut for the ranks; unset one of them");
  if (!complaints.empty()) throw ConfigError("[data] " + complaints);
}

// Values that very likely differ if the samplers of two ranks give different
// orders.
std::int64_t fingerprint(Sampler& sampler, std::uint64_t seed) {
  sampler.begin_pass(seed, 0);
  std::uint64_t sum = 0;
  constexpr std::int64_t kNumProbes = 16;
  const std::int64_t step =
      std::max<std::int64_t>(sampler.size() / kNumProbes, 1);
  for (std::int64_t i = 0; i < sampler.size(); i += step) {
    sum = mix(sum ^ static_cast<std::uint64_t>(sampler.at(i)));
  }
  return static_cast<std::int64_t>(sum);
}

std::int64_t fingerprint(BatchSampler& sampler, std::uint64_t seed) {
  sampler.begin_pass(seed, 0);
  std::uint64_t sum = 0;
  for (std::int64_t batch = 0;
       batch < std::min<std::int64_t>(sampler.size(), 4);
       ++batch) {
    for (const std::int64_t i : sampler.at(batch))
      sum = mix(sum ^ static_cast<std::uint64_t>(i));
  }
  return static_cast<std::int64_t>(sum);
}

}  // namespace

DataLoaderOptions with_defaults(
    DataLoaderOptions options,
    const DataLoaderConfiguration& defaults) {
  const auto fill = [](auto& field, const auto& value) {
    if (!field) field = value;
  };
  fill(options.split_batches, defaults.split_batches);
  fill(options.dispatch_batches, defaults.dispatch_batches);
  fill(options.even_batches, defaults.even_batches);
  fill(options.use_seedable_sampler, defaults.use_seedable_sampler);
  fill(options.data_seed, defaults.data_seed);
  fill(options.non_blocking, defaults.non_blocking);
  return options;
}

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
  /// The loader's own options, and these with defaults in unset fields.
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
  /// True once it was said that rounds stay even in join_uneven_inputs().
  bool has_warned = false;
  std::uint64_t epoch = 0;
  bool is_reading = false;
  /// Epoch of the pass under way; set_epoch may already have set the next one.
  std::uint64_t pass_epoch = 0;
  /// Positions at which the pass under way began and the next one will begin.
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
  // The values that must agree, in the order of the enumeration Agreed.
  [[nodiscard]] std::vector<std::int64_t> agreed_values(
      std::uint64_t rank_0_seed,
      bool dispatches) const {
    std::int64_t flags = 0;
    for (const bool flag :
         {dispatches,
          options.already_sharded,
          *options.split_batches,
          options.drop_last,
          *options.even_batches,
          options.shuffle,
          *options.use_seedable_sampler}) {
      flags = 2 * flags + (flag ? 1 : 0);
    }
    // Data that the loader does not divide among the ranks may differ.
    if (dispatches || options.already_sharded) {
      return {flags, options.batch_size, 0, 0, 0, 0};
    }
    const std::uint64_t seed = options.data_seed.value_or(rank_0_seed);
    std::int64_t order_fingerprint = 0;
    if (options.sampler)
      order_fingerprint = fingerprint(*options.sampler, seed);
    if (options.batch_sampler)
      order_fingerprint = fingerprint(*options.batch_sampler, seed);
    const std::int64_t order_size =
        options.batch_sampler ? options.batch_sampler->size() : sampler->size();
    return {
        flags,
        options.batch_size,
        dataset.num_samples,
        order_size,
        order_fingerprint,
        static_cast<std::int64_t>(seed)};
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

namespace {

// Values that must be equal on all ranks, in this order.
enum Agreed : std::size_t {
  kFlags,
  kBatchSize,
  kDatasetSize,
  kOrderSize,
  kOrder,
  kSeed
};

void require_agreement(
    const Group& group,
    const std::vector<std::int64_t>& mine) {
  constexpr std::string_view kRemedy =
      "; give every rank the entire dataset in the same order, which the "
      "loader shards; if the data is sharded already, set already_sharded";
  const std::vector<at::Tensor> all =
      group.all_gather(at::tensor(mine, at::kLong));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    const auto require_equal = [&](Agreed value,
                                   std::string_view what,
                                   std::string_view remedy) {
      const std::int64_t theirs =
          all[rank].const_data_ptr<std::int64_t>()[value];
      const std::int64_t of_first =
          all[0].const_data_ptr<std::int64_t>()[value];
      if (theirs == of_first) return;
      // These values mean nothing to a reader.
      const std::string numbers = value == kOrder || value == kFlags
          ? std::string()
          : format(": {} and {}", of_first, theirs);
      throw ConfigError(format(
          "[data] ranks 0 and {} have {}{}{}", rank, what, numbers, remedy));
    };
    require_equal(
        kFlags,
        "different values of one of dispatch_batches, already_sharded, "
        "split_batches, drop_last, even_batches, shuffle and "
        "use_seedable_sampler",
        "; make them equal");
    require_equal(
        kBatchSize, "different values of batch_size", "; make them equal");
    require_equal(kDatasetSize, "datasets of different sizes", kRemedy);
    require_equal(kOrderSize, "samplers of different sizes", kRemedy);
    require_equal(kOrder, "samplers that give different orders", kRemedy);
    require_equal(kSeed, "different values of data_seed", "; make them equal");
  }
}

void require_dispatchable(const DataLoaderOptions& options) {
  if (options.batch_sampler) {
    throw ConfigError(
        "[data] dispatch_batches cuts rounds evenly, but a batch_sampler gives "
        "batches of varying sizes; unset one of them");
  }
  if (!*options.even_batches && !options.drop_last) {
    throw ConfigError(
        "[data] even_batches = false leaves ranks without samples at the end, "
        "but dispatch_batches cuts every round evenly; unset one of them, or "
        "set drop_last");
  }
}

// Throws for what the options cannot be once the ranks and the accelerator's
// defaults are known.
void require_attachable(
    const DatasetFacts& dataset,
    const DataLoaderOptions& given,
    const DataLoaderOptions& options,
    bool dispatches) {
  DataLoaderOptions checked = options;
  // As a default it applies to loaders that shuffle.
  checked.use_seedable_sampler = given.use_seedable_sampler;
  require_consistent(dataset, checked);
  if (dispatches) require_dispatchable(options);
  if (dataset.is_sharded && !options.already_sharded) {
    throw ConfigError(
        "[data] this dataset says that it is sharded already (is_sharded()), "
        "and the loader would "
        "shard it again; set already_sharded, or give the entire dataset");
  }
}

}  // namespace

void BatchSource::attach(LoaderContext context, bool dispatches) {
  if (state_->is_attached) {
    throw ConfigError(
        "[data] this loader was prepared already, so its ranks read shards of "
        "the data; prepare it only once");
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
  // Throws for sizes that do not fit.
  make_batch_shard(
      now.sampler->size(),
      now.options,
      is_sharded ? 0 : context.batch_rank,
      is_sharded ? 1 : context.batch_count);
  now.is_dispatching = dispatches && context.group.size() > 1;
  if (context.group.size() > 1) {
    require_agreement(
        context.group, now.agreed_values(context.seed, now.is_dispatching));
  }
  if (now.options.pin_memory && context.device.is_cpu()) {
    context.logger.log_once_per_world(
        LogLevel::info,
        "data",
        "pin_memory changes nothing: there is no accelerator whose copies it "
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
  // Positions in a shard mean nothing for another number of shards.
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
        "[data] load_state_dict was called inside a pass over this loader; "
        "leave the loop first");
  }
  if (epoch < 0 || position < 0) {
    throw CheckpointError(format(
        "[data] the state of a loader says epoch {} and position {}; neither "
        "can be below 0",
        epoch,
        position));
  }
  const std::int64_t shards_now =
      state_->options.already_sharded ? state_->context.batch_count : 0;
  if (num_shards != shards_now && position > 0) {
    throw CheckpointError(format(
        "[data] the state of a loader was taken with data sharded by the user "
        "over {} ranks (0: by the loader), and now there are {}; resume such "
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
  // First, since it may synchronise generators that a sampler draws from.
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
          "[data] the sampler gave index {} for batch {}, and the dataset has "
          "{} samples; indices are at least 0 and below that number",
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
