#include <accelerate/detail/dataset_engine.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/detail/step_parts.h>
#include <accelerate/error.h>

#include "data/loading/batch_fetcher.h"
#include "data/loading/dispatch.h"
#include "data/loading/loader_clock.h"
#include "data/loading/loader_errors.h"
#include "data/loading/place_batch.h"
#include "data/loading/worker_pool.h"

namespace accelerate::detail {

struct DatasetEngine::State {
  struct Pass {
    std::int64_t num_skipped = 0;
    /// True once the last batch was handed out.
    bool has_ended = false;
    std::optional<LoaderClock::time_point> handed_out = std::nullopt;
    /// With dispatch_batches: the samples that fill up the last round.
    std::unique_ptr<LoadedBatch> first_round = nullptr;
  };

  std::shared_ptr<BatchFetcher> fetcher;
  Pass pass = {};
  /// Passes begun since the loader was prepared.
  std::int64_t num_passes = 0;
  PrefetchReport report = {};
  /// The state of a stream after the current batch, or the one from which the
  /// next pass continues.
  std::optional<StateDict> stream_state = std::nullopt;
  /// Activity of a worker that was left behind inside a stream; else empty.
  std::string stuck = {};
  std::unique_ptr<WorkerPool> pool = nullptr;

  [[nodiscard]] BatchSource& source() const { return fetcher->source; }
  [[nodiscard]] const DataLoaderOptions& options() const {
    return fetcher->options;
  }

  /// Number of rounds that the loop has been given.
  [[nodiscard]] std::int64_t num_given() const;
  void start_workers();
  std::unique_ptr<LoadedBatch> next_made();
  std::unique_ptr<LoadedBatch> hand_out(std::unique_ptr<LoadedBatch> batch);
  void divide(LoadedBatch& batch) const;
  void keep_stream_state(LoadedBatch& batch);
  /// This rank's slice of the next round, from rank 0.
  std::unique_ptr<LoadedBatch> receive_round();
  std::vector<RoundSlice> slice_next_round(RoundHeader& header);
};

std::int64_t DatasetEngine::State::num_given() const {
  const bool is_out_of_order = pool && !options().in_order;
  return pass.num_skipped +
      (is_out_of_order ? pool->num_in_turn() : report.num_batches);
}

void DatasetEngine::State::start_workers() {
  const int num_workers = options().num_workers;
  pool = std::make_unique<WorkerPool>(
      WorkerPoolOptions{
          .num_workers = num_workers,
          .capacity =
              std::int64_t{num_workers} * options().prefetch_factor.value_or(2),
          .in_order = options().in_order,
          .timeout = options().timeout},
      [shared = fetcher](Worker& worker) { return shared->claim(worker); });
}

std::unique_ptr<LoadedBatch> DatasetEngine::State::next_made() {
  std::unique_ptr<LoadedBatch> batch;
  if (options().num_workers == 0) {
    batch = fetcher->claim(fetcher->self);
    if (batch) batch->run(fetcher->self);
  } else {
    if (!pool) start_workers();
    batch = pool->next();
  }
  if (!batch) return nullptr;
  // A loop that keeps its batch does not keep the dataset.
  batch->fetcher.reset();
  report.read_seconds += batch->read_seconds;
  report.collate_seconds += batch->collate_seconds;
  report.transfer_seconds += batch->transfer_seconds;
  return batch;
}

std::unique_ptr<LoadedBatch> DatasetEngine::State::hand_out(
    std::unique_ptr<LoadedBatch> batch) {
  if (!batch) return nullptr;
  const at::Device device = source().context().device;
  if (batch->sent) {
    wait_for_side_stream(batch->sent, device);
    batch->visit([](at::Tensor& tensor) {
      if (tensor.defined()) use_on_current_stream(tensor);
    });
  } else if (device.is_cpu() && fetcher->places_batches()) {
    place_batch(*batch, at::kCPU, /*non_blocking=*/false);
  }
  keep_stream_state(*batch);
  pass.has_ended = batch->is_last;
  divide(*batch);
  source().announce(batch->is_last, batch->read.remainder);
  return batch;
}

// Only prepared loaders know what to divide, and their options are complete.
void DatasetEngine::State::divide(LoadedBatch& batch) const {
  if (const auto& sequences = options().sequences)
    divide_sequences(batch, source().context(), *sequences);
}

void DatasetEngine::State::keep_stream_state(LoadedBatch& batch) {
  // Out of order, earlier batches may not have been handed out yet.
  if (batch.stream_state && options().in_order)
    stream_state = std::move(batch.stream_state);
}

std::unique_ptr<LoadedBatch> DatasetEngine::State::receive_round() {
  if (pass.has_ended) return nullptr;
  const LoaderContext& context = source().context();
  RoundHeader header{.pass = num_passes - 1, .round = report.num_batches};
  std::vector<RoundSlice> slices;
  std::exception_ptr failure;
  if (fetcher->reads_dataset()) {
    try {
      slices = slice_next_round(header);
    } catch (const std::exception& error) {
      failure = std::current_exception();
      header.error = *error.what() != '\0' ? error.what() : "unknown error";
      header.is_data_error = dynamic_cast<const DataError*>(&error) != nullptr;
    }
  }
  const auto sending = LoaderClock::now();
  const RoundSlice mine = scatter_round(context.group, header, slices);
  if (failure) std::rethrow_exception(failure);
  pass.has_ended = header.is_last;
  if (!header.has_batch) return nullptr;
  std::unique_ptr<LoadedBatch> batch = received_batch(*fetcher->dataset, mine);
  if (fetcher->places_batches()) {
    place_batch(*batch, context.device, options().non_blocking.value_or(false));
  }
  report.transfer_seconds += seconds_between(sending, LoaderClock::now());
  divide(*batch);
  source().announce(
      header.is_last, header.rows % context.batch_count == 0 ? 0 : header.rows);
  return batch;
}

std::vector<RoundSlice> DatasetEngine::State::slice_next_round(
    RoundHeader& header) {
  const std::unique_ptr<LoadedBatch> round = next_made();
  if (!round) return {};
  if (!pass.first_round) pass.first_round = round->copy();
  keep_stream_state(*round);
  std::vector<RoundSlice> slices = slices_of_round(
      *fetcher->dataset, *round, *pass.first_round, source().context());
  header.has_batch = true;
  header.is_last = round->is_last;
  header.rows = rows_of_round(round->parts());
  return slices;
}

DatasetEngine::DatasetEngine(
    std::unique_ptr<LoaderDataset> dataset,
    const DataLoaderOptions& options)
    : state_(std::make_unique<State>(
          State{std::make_shared<BatchFetcher>(std::move(dataset), options)})) {
}

// The callbacks of a pass in progress must not outlive what they report on.
DatasetEngine::~DatasetEngine() { DatasetEngine::end_pass(); }

void DatasetEngine::begin_pass() {
  State& now = *state_;
  if (now.source().is_reading())
    throw_nested_pass(now.source().epoch(), now.report.num_batches);
  if (!now.stuck.empty()) throw_stuck(now.stuck);
  now.pass = {};
  now.report = {.num_workers = options().num_workers};
  try {
    now.fetcher->begin_pass(now.stream_state);
  } catch (...) {
    now.source().end_pass();
    throw;
  }
  ++now.num_passes;
}

void DatasetEngine::end_pass() noexcept {
  State& now = *state_;
  if (!now.source().is_reading()) return;
  if (now.pool) {
    bool is_claiming = false;
    const std::string left_behind = now.pool->stop(is_claiming);
    now.pool.reset();
    if (!left_behind.empty())
      warn_left_behind(now.source().context().logger, left_behind);
    if (is_claiming) {
      now.stuck = left_behind;
      now.source().abandon_pass();
      return;
    }
  }
  now.source().end_pass();
  now.pass = {};
  now.stream_state.reset();
}

void DatasetEngine::skip(std::int64_t num_batches) {
  State& now = *state_;
  if (num_batches <= 0) return;
  now.pass.num_skipped = num_batches;
  BatchFetcher& fetcher = *now.fetcher;
  if (!fetcher.reads_dataset()) return;
  if (now.source().is_dispatching()) {
    // Reads the first round anyway: it fills up the last one.
    if (auto round = fetcher.claim(fetcher.self)) {
      round->run(fetcher.self);
      round->fetcher.reset();
      now.pass.first_round = std::move(round);
    }
    --num_batches;
  }
  fetcher.skip(num_batches);
}

std::unique_ptr<LoadedBatch> DatasetEngine::next() {
  State& now = *state_;
  const StepPartScope part(now.source().context().steps.get(), StepPart::data);
  const auto start = LoaderClock::now();
  PrefetchReport& report = now.report;
  if (now.pass.handed_out)
    report.loop_seconds += seconds_between(*now.pass.handed_out, start);
  std::unique_ptr<LoadedBatch> batch = now.source().is_dispatching()
      ? now.receive_round()
      : now.hand_out(now.next_made());
  if (batch) ++report.num_batches;
  now.pass.handed_out = LoaderClock::now();
  report.wait_seconds += seconds_between(start, *now.pass.handed_out);
  return batch;
}

std::uint64_t DatasetEngine::epoch() const { return state_->source().epoch(); }

void DatasetEngine::set_epoch(std::uint64_t epoch) {
  state_->source().set_epoch(epoch);
}

StateDict DatasetEngine::state_dict() const {
  const State& now = *state_;
  StateDict state =
      now.source().state_dict(now.num_given(), now.pass.has_ended);
  const bool is_inside = now.source().is_reading()
      ? !now.pass.has_ended
      : now.stream_state.has_value();
  if (now.stream_state && is_inside) state.set("stream", *now.stream_state);
  return state;
}

void DatasetEngine::load_state_dict(const StateDict& state) {
  State& now = *state_;
  if (!now.stuck.empty()) throw_stuck(now.stuck);
  now.source().load_state_dict(state);
  now.stream_state.reset();
  // At 0 the saved pass had ended.
  const bool is_inside = now.source().first() > 0;
  if (is_inside && state.contains("stream"))
    now.stream_state = state.get<StateDict>("stream");
}

void DatasetEngine::attach(LoaderContext context) {
  State& now = *state_;
  const LoaderFacts& facts = dataset().facts;
  DataLoaderOptions resolved =
      with_defaults(now.source().given(), context.defaults);
  resolved.device_placement = context.device_placement.value_or(
      resolved.device_placement.value_or(context.places_by_default));
  const std::optional<bool> requested = resolved.dispatch_batches;
  if (requested.value_or(false) && !facts.can_dispatch)
    throw_not_dispatchable();
  require_sequences(*resolved.sequences, facts.has_tensors);
  const bool is_default = facts.is_stream && facts.can_dispatch &&
      !resolved.already_sharded &&
      (*resolved.even_batches || resolved.drop_last);
  std::shared_ptr<LoaderSlot> slot = context.slot;
  now.num_passes = 0;
  now.source().attach(std::move(context), requested.value_or(is_default));
  now.fetcher->options = std::move(resolved);
  link(std::move(slot));
}

std::int64_t DatasetEngine::size() const { return state_->source().size(); }

std::int64_t DatasetEngine::total_batch_size() const {
  return state_->source().round_size();
}

const PrefetchReport& DatasetEngine::report() const { return state_->report; }

LoaderDataset& DatasetEngine::dataset() const {
  return *state_->fetcher->dataset;
}

const DataLoaderOptions& DatasetEngine::options() const {
  return state_->options();
}

}  // namespace accelerate::detail
