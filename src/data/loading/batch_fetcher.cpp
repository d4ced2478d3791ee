#include "data/loading/batch_fetcher.h"

#include <algorithm>
#include <vector>

#include "data/loading/loader_clock.h"
#include "data/loading/loader_errors.h"
#include "data/loading/place_batch.h"
#include "data/loading/skip_progress.h"

namespace accelerate::detail {

at::Generator& SampleGenerator::operator()() const {
  return worker_.generator(seed_at(pass_seed_, position_));
}

LoaderDataset::LoaderDataset(const LoaderFacts& its_facts) : facts(its_facts) {}

LoaderDataset::~LoaderDataset() = default;

LoadedBatch::LoadedBatch() = default;

LoadedBatch::~LoadedBatch() = default;

void LoadedBatch::run(Worker& worker) { fetcher->make(*this, worker); }

BatchFetcher::BatchFetcher(
    std::unique_ptr<LoaderDataset> its_dataset,
    const DataLoaderOptions& its_options)
    : dataset(std::move(its_dataset)),
      options(its_options),
      source(
          {dataset->num_samples(),
           dataset->facts.is_stream,
           dataset->facts.is_sharded},
          its_options) {}

void BatchFetcher::begin_pass(const std::optional<StateDict>& stream_state) {
  source.begin_pass(dataset->num_samples());
  next_number_ = 0;
  has_begun_ = false;
  stream_has_ended_ = false;
  num_read_ = 0;
  ahead_.reset();
  first_samples_.reset();
  if (dataset->facts.is_stream && reads_dataset()) begin_stream(stream_state);
}

void BatchFetcher::begin_stream(const std::optional<StateDict>& stream_state) {
  dataset->begin_epoch(source.epoch());
  if (stream_state && dataset->restore(*stream_state)) {
    num_read_ = source.first();
    return;
  }
  SkipProgress progress(
      source.context().logger, source.first(), source.context().progress);
  while (num_read_ < source.first() && next_sample(nullptr)) progress.update();
}

bool BatchFetcher::places_batches() const {
  return options.device_placement.value_or(true);
}

bool BatchFetcher::reads_dataset() const {
  return !source.is_dispatching() || source.context().group.rank() == 0;
}

std::unique_ptr<LoadedBatch> BatchFetcher::claim(Worker& worker) {
  std::unique_ptr<LoadedBatch> batch;
  if (dataset->facts.is_stream) {
    const auto start = LoaderClock::now();
    batch = claim_from_stream(worker);
    if (!batch) return nullptr;
    batch->read_seconds = seconds_between(start, LoaderClock::now());
  } else {
    if (next_number_ >= source.size()) return nullptr;
    batch = dataset->new_batch();
    batch->read = source.at(next_number_);
    batch->is_last = next_number_ + 1 >= source.size();
  }
  batch->fetcher = shared_from_this();
  batch->number = next_number_++;
  return batch;
}

void BatchFetcher::skip(std::int64_t num_batches) {
  if (!dataset->facts.is_stream) {
    next_number_ += num_batches;
    return;
  }
  for (std::int64_t i = 0; i < num_batches && claim(self); ++i) {
  }
}

void BatchFetcher::make(LoadedBatch& batch, Worker& worker) {
  const auto start = LoaderClock::now();
  auto collate_start = start;
  if (dataset->facts.gives_batches) {
    read_batch(batch, worker);
    collate_start = LoaderClock::now();
  } else {
    if (!dataset->facts.is_stream) {
      read_samples(batch, worker);
      collate_start = LoaderClock::now();
    }
    collate(batch, worker);
  }
  const auto made = LoaderClock::now();
  batch.read_seconds += seconds_between(start, collate_start);
  batch.collate_seconds = seconds_between(collate_start, made);
  if (!dataset->facts.has_tensors || source.context().device.is_cpu() ||
      source.is_dispatching()) {
    return;
  }
  worker.now(Worker::Doing::transferring, batch.number);
  send(batch, worker);
  batch.transfer_seconds = seconds_between(made, LoaderClock::now());
}

void BatchFetcher::send(LoadedBatch& batch, Worker& worker) {
  const at::Device device = source.context().device;
  if (options.pin_memory) {
    batch.visit([](at::Tensor& tensor) {
      if (tensor.defined() && tensor.is_cpu()) tensor = tensor.pin_memory();
    });
  }
  if (!places_batches()) return;
  const bool non_blocking =
      options.non_blocking.value_or(false) || options.pin_memory;
  const auto copy = [&] { place_batch(batch, device, non_blocking); };
  if (&worker == &self) {
    copy();
  } else {
    batch.sent = worker.on_side_stream(device, copy);
  }
}

void BatchFetcher::require_present(std::int64_t index) const {
  const std::int64_t size = dataset->num_samples();
  if (size >= 0 && index >= size) throw_shrunk(index, size);
}

void BatchFetcher::read_batch(LoadedBatch& batch, Worker& worker) {
  const std::vector<std::int64_t>& indices = batch.read.indices;
  worker.now(Worker::Doing::reading, indices.empty() ? 0 : indices.front());
  if (!indices.empty()) require_present(*std::ranges::max_element(indices));
  try {
    dataset->get_batch(
        batch, {worker, batch.read.pass_seed, batch.read.first_position});
  } catch (...) {
    throw_batch_error(batch.number, indices, "get_batch()");
  }
}

void BatchFetcher::read_samples(LoadedBatch& batch, Worker& worker) {
  std::int64_t position = batch.read.first_position;
  for (const std::int64_t index : batch.read.indices) {
    worker.now(Worker::Doing::reading, index);
    require_present(index);
    try {
      dataset->get(batch, index, {worker, batch.read.pass_seed, position});
    } catch (...) {
      throw_sample_error(index, "get()");
    }
    ++position;
  }
}

void BatchFetcher::collate(LoadedBatch& batch, Worker& worker) {
  worker.now(Worker::Doing::collating, batch.number);
  try {
    // ~ selects a generator other than the first sample's.
    dataset->collate(
        batch, {worker, batch.read.pass_seed, ~batch.read.first_position});
  } catch (...) {
    throw_batch_error(batch.number, batch.read.indices, "the collate function");
  }
}

bool BatchFetcher::next_sample(LoadedBatch* batch) {
  try {
    stream_has_ended_ = !dataset->next(batch);
  } catch (...) {
    throw_sample_error(num_read_, "next()");
  }
  num_read_ += stream_has_ended_ ? 0 : 1;
  return !stream_has_ended_;
}

std::int64_t BatchFetcher::rows_of_round() const {
  return source.rank_batch_size() * source.num_shares();
}

std::unique_ptr<LoadedBatch> BatchFetcher::read_round(Worker& worker) {
  const std::int64_t size = rows_of_round();
  std::unique_ptr<LoadedBatch> round = dataset->new_batch();
  while (!stream_has_ended_ && round->num_samples < size) {
    worker.now(Worker::Doing::reading, num_read_);
    if (next_sample(round.get())) ++round->num_samples;
  }
  const bool is_partial = round->num_samples < size;
  if (round->num_samples == 0 || (is_partial && options.drop_last))
    return nullptr;
  round->stream_state = dataset->state_dict();
  return round;
}

std::pair<std::int64_t, std::int64_t> BatchFetcher::share_of_round(
    std::int64_t rows) const {
  const std::int64_t size = source.rank_batch_size();
  const std::int64_t begin = source.share() * size;
  return {
      begin, source.fills_up() ? begin + size : std::min(begin + size, rows)};
}

bool BatchFetcher::has_share(const LoadedBatch* round) const {
  if (round == nullptr || source.is_dispatching()) return round != nullptr;
  const auto [begin, end] = share_of_round(round->num_samples);
  return begin < end;
}

std::unique_ptr<LoadedBatch> BatchFetcher::claim_from_stream(Worker& worker) {
  // Reads one round ahead, because otherwise the last round is not known to be
  // the last.
  if (!std::exchange(has_begun_, true)) ahead_ = read_round(worker);
  if (!has_share(ahead_.get())) return nullptr;
  std::unique_ptr<LoadedBatch> round = std::move(ahead_);
  round->read.pass_seed = source.pass_seed();
  round->read.first_position = num_read_ - round->num_samples;
  ahead_ = read_round(worker);
  round->is_last = !has_share(ahead_.get());
  if (!source.is_dispatching()) keep_share(*round);
  return round;
}

void BatchFetcher::keep_share(LoadedBatch& round) {
  const std::int64_t rows = round.num_samples;
  if (source.fills_up() && !first_samples_)
    first_samples_ = dataset->copy_samples(round);
  const auto [begin, end] = share_of_round(rows);
  dataset->keep_share(round, begin, end, first_samples_.get());
  round.read.first_position += begin;
  const bool is_filled = source.fills_up() && rows < rows_of_round();
  round.read.remainder = is_filled ? rows : 0;
}

}  // namespace accelerate::detail
