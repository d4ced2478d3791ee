#include <accelerate/data_loader.h>

#include <accelerate/error.h>

#include "data/batch_plan.h"
#include "data/permutation.h"

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

}  // namespace

struct BatchSource::State {
  std::int64_t num_samples;
  DataLoaderOptions options;
  LoaderContext context;
  BatchPlan plan;
  BatchPlan round_plan;
  bool is_dispatching = false;
  bool even_batches = true;
  std::uint64_t epoch = 0;
  bool is_reading = false;
  std::optional<Permutation> order;

  void make_plans() {
    DataLoaderOptions now = options;
    if (context.even_batches) {
      now.even_batches = context.even_batches().value_or(options.even_batches);
    }
    even_batches = now.even_batches;
    plan = make_plan(num_samples, now, context);
    round_plan = make_round_plan(num_samples, plan, options.drop_last);
  }
  [[nodiscard]] const BatchPlan& read_plan() const { return is_dispatching ? round_plan : plan; }
};

BatchSource::BatchSource(std::int64_t num_samples, const DataLoaderOptions& options) {
  const BatchPlan plan = make_plan(num_samples, options, {});
  state_ = std::make_unique<State>(State{
      .num_samples = num_samples,
      .options = options,
      .context = {},
      .plan = plan,
      .round_plan = plan,
      .order = {}});
}

BatchSource::~BatchSource() = default;
BatchSource::BatchSource(BatchSource&&) noexcept = default;
BatchSource& BatchSource::operator=(BatchSource&&) noexcept = default;

void BatchSource::attach(LoaderContext context, bool is_dispatching) {
  make_plan(state_->num_samples, state_->options, context);  // throws before anything changes
  state_->context = std::move(context);
  state_->is_dispatching = is_dispatching;
  state_->make_plans();
}

bool BatchSource::is_dispatching() const { return state_->is_dispatching; }

const LoaderContext& BatchSource::context() const { return state_->context; }

std::int64_t BatchSource::size() const { return state_->read_plan().size(); }

std::int64_t BatchSource::round_size() const { return state_->plan.round_size(); }

std::int64_t BatchSource::rank_batch_size() const {
  return state_->plan.round_size() / state_->context.batch_count;
}

bool BatchSource::fills_up() const {
  return state_->even_batches && state_->context.batch_count > 1;
}

std::uint64_t BatchSource::epoch() const { return state_->epoch; }

void BatchSource::set_epoch(std::uint64_t epoch) { state_->epoch = epoch; }

void BatchSource::begin_pass() {
  end_pass();
  state_->is_reading = true;
  state_->make_plans();
  if (state_->options.shuffle) {
    state_->order.emplace(
        state_->num_samples, state_->options.data_seed.value_or(state_->context.seed),
        state_->epoch);
  }
  if (state_->context.begin) state_->context.begin();
}

void BatchSource::end_pass() noexcept {
  if (!state_ || !state_->is_reading) return;
  state_->is_reading = false;
  ++state_->epoch;
  if (state_->context.end) state_->context.end();
}

std::vector<std::int64_t> BatchSource::indices(std::int64_t index) const {
  std::vector<std::int64_t> indices = state_->read_plan().positions(index);
  if (state_->order) {
    for (std::int64_t& i : indices) i = (*state_->order)(i);
  }
  return indices;
}

std::int64_t BatchSource::remainder(std::int64_t index) const {
  return state_->plan.remainder(index);
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
