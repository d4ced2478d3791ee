#include <accelerate/detail/torch_engine.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "data/loading/loader_errors.h"
#include "data/loading/place_batch.h"
#include "data/order/torch_order.h"

namespace accelerate::detail {

TorchBatches::TorchBatches() = default;

TorchBatches::~TorchBatches() = default;

struct TorchEngine::State {
  std::unique_ptr<TorchBatches> batches;
  TorchFacts facts;
  TorchOrder order = {};
  bool fills_up = true;
  std::vector<std::unique_ptr<LoadedBatch>> first_round = {};
  std::unique_ptr<LoadedBatch> next = nullptr;
  /// Number of real samples in the round of `next` if it was filled up.
  std::int64_t next_remainder = 0;

  /// The next batch of all ranks; null at the end.
  std::unique_ptr<LoadedBatch> read();
  void keep(const LoadedBatch& batch);
  void fetch_round();
};

std::unique_ptr<LoadedBatch> TorchEngine::State::read() {
  std::unique_ptr<LoadedBatch> batch = batches->next();
  if (!batch) return nullptr;
  const int count = order.context().batch_count;
  const bool is_in_first_round = static_cast<int>(first_round.size()) < count;
  if (is_in_first_round && fills_up && count > 1) keep(*batch);
  return batch;
}

// The loop may write to the batch that it gets.
void TorchEngine::State::keep(const LoadedBatch& batch) {
  first_round.push_back(batches->copy(batch));
  first_round.back()->visit([](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.clone();
  });
}

// Reads one round ahead, because only then is the last batch known to be the
// last.
void TorchEngine::State::fetch_round() {
  next.reset();
  next_remainder = 0;
  const int count = order.context().batch_count;
  const int mine = order.context().batch_rank;
  std::int64_t num_samples = 0;
  int place = 0;
  for (; place < count; ++place) {
    std::unique_ptr<LoadedBatch> batch = read();
    if (!batch) break;
    num_samples += batches->num_samples(*batch);
    if (place == mine) next = std::move(batch);
  }
  if (place == 0 || place == count || !fills_up) return;
  // Gives the remaining ranks the first batches, in order.
  next_remainder = num_samples;
  if (place <= mine) {
    next = batches->copy(
        *first_round
            [static_cast<std::size_t>(mine - place) % first_round.size()]);
  }
}

TorchEngine::TorchEngine(
    std::unique_ptr<TorchBatches> batches,
    const TorchFacts& facts)
    : state_(std::make_unique<State>(State{std::move(batches), facts})) {}

// The callbacks of a pass in progress must not outlive what they report on.
TorchEngine::~TorchEngine() { TorchEngine::end_pass(); }

void TorchEngine::begin_pass() {
  State& now = *state_;
  now.order.begin_pass([&] { now.batches->begin(); });
  now.fills_up = now.order.fills_up();
  now.first_round.clear();
}

void TorchEngine::skip(std::int64_t num_rounds) {
  State& now = *state_;
  const int count = now.order.context().batch_count;
  std::int64_t left = now.order.first() + num_rounds * count;
  while (left > 0 && now.read()) --left;
  now.order.skip_rounds(num_rounds);
  now.fetch_round();
}

std::unique_ptr<LoadedBatch> TorchEngine::next() {
  State& now = *state_;
  std::unique_ptr<LoadedBatch> batch = std::move(now.next);
  if (!batch) return nullptr;
  const std::int64_t remainder = now.next_remainder;
  now.fetch_round();
  const LoaderContext& context = now.order.context();
  if (now.order.places_batches())
    place_batch(*batch, context.device, context.defaults.non_blocking);
  divide_sequences(*batch, context, context.defaults.sequences);
  now.order.announce(/*is_last=*/!now.next, remainder);
  return batch;
}

void TorchEngine::end_pass() noexcept {
  State& now = *state_;
  now.order.end_pass();
  now.batches->end();
  now.first_round.clear();
  now.next.reset();
}

std::uint64_t TorchEngine::epoch() const { return state_->order.epoch(); }

void TorchEngine::set_epoch(std::uint64_t epoch) {
  state_->order.set_epoch(epoch);
}

StateDict TorchEngine::state_dict() const { return state_->order.state_dict(); }

std::string TorchEngine::load_complaint(const StateDict& state) const {
  return state_->order.load_complaint(state);
}

void TorchEngine::load_state_dict(const StateDict& state) {
  state_->order.load_state_dict(state);
}

void TorchEngine::attach(LoaderContext context) {
  require_sequences(context.defaults.sequences, state_->facts.has_tensors);
  std::shared_ptr<LoaderSlot> slot = context.slot;
  state_->order.attach(std::move(context), state_->facts.is_reproducible);
  link(std::move(slot));
}

TorchBatches& TorchEngine::batches() const { return *state_->batches; }

}  // namespace accelerate::detail
