#include <accelerate/data_loader.h>

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

}  // namespace

struct BatchSource::State {
  std::int64_t num_samples;
  DataLoaderOptions options;
  LoaderContext context;
  BatchPlan plan;
  std::uint64_t epoch = 0;
  bool is_reading = false;
  std::optional<Permutation> order;
};

BatchSource::BatchSource(std::int64_t num_samples, const DataLoaderOptions& options)
    : state_(std::make_unique<State>(
          State{num_samples, options, {}, make_plan(num_samples, options, {}), 0, false, {}})) {}

BatchSource::~BatchSource() = default;
BatchSource::BatchSource(BatchSource&&) noexcept = default;
BatchSource& BatchSource::operator=(BatchSource&&) noexcept = default;

void BatchSource::attach(LoaderContext context) {
  state_->plan = make_plan(state_->num_samples, state_->options, context);
  state_->context = std::move(context);
}

std::int64_t BatchSource::size() const { return state_->plan.size(); }

std::int64_t BatchSource::round_size() const { return state_->plan.round_size(); }

std::uint64_t BatchSource::epoch() const { return state_->epoch; }

void BatchSource::set_epoch(std::uint64_t epoch) { state_->epoch = epoch; }

void BatchSource::begin_pass() {
  end_pass();
  state_->is_reading = true;
  DataLoaderOptions options = state_->options;
  if (state_->context.even_batches) {
    options.even_batches = state_->context.even_batches().value_or(options.even_batches);
  }
  state_->plan = make_plan(state_->num_samples, options, state_->context);
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
  std::vector<std::int64_t> indices = state_->plan.positions(index);
  if (state_->order) {
    for (std::int64_t& i : indices) i = (*state_->order)(i);
  }
  return indices;
}

void BatchSource::announce(std::int64_t index) const {
  if (!state_->context.on_batch) return;
  state_->context.on_batch(index + 1 == state_->plan.size(), state_->plan.remainder(index));
}

at::Device BatchSource::device() const { return state_->context.device; }

}  // namespace accelerate::detail
