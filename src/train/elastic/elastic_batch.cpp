// Number of samples per step of an elastic group.
#include <algorithm>
#include <cstdint>

#include <accelerate/elastic.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "train/elastic/elastic_run.h"

namespace accelerate {

namespace {

using detail::ElasticRun;
using detail::format;

// The window with which a number of ranks reads `samples` per step, and how
// many samples they then read.
struct Window {
  std::int64_t steps = 1;
  std::int64_t samples = 0;
};

Window nearest_window(std::int64_t samples, std::int64_t at_once) {
  const std::int64_t steps =
      std::max<std::int64_t>((samples + at_once / 2) / at_once, 1);
  return {steps, steps * at_once};
}

// True if a group may have been restarted with another number of ranks, and the
// number it began with is unknown.
bool hides_first_size(const ElasticRun& run) {
  return run.seat == nullptr && run.identity.board.empty() &&
      run.identity.launcher != "none";
}

}  // namespace

int ElasticContext::gradient_accumulation_steps(
    std::int64_t batch_size,
    int ranks_per_batch) const {
  const std::int64_t samples = run_->options.global_batch_size;
  if (samples < 1) {
    throw ConfigError(format(
        "[train] gradient_accumulation_steps() needs "
        "ElasticOptions::global_batch_size, which is {}; set the number of "
        "samples of a step on all ranks",
        samples));
  }
  const bool is_per_rank = run_->options.batch == ElasticBatch::per_rank;
  const int num_ranks = is_per_rank ? run_->most_ranks : num_processes();
  if (batch_size < 1 || ranks_per_batch < 1 ||
      num_ranks % ranks_per_batch != 0) {
    throw ConfigError(format(
        "[train] gradient_accumulation_steps() got batches of {} for {} of {} "
        "ranks each, but batches must have 1 sample or more, and the ranks "
        "that share one must divide all ranks",
        batch_size,
        ranks_per_batch,
        num_ranks));
  }
  const std::int64_t at_once = batch_size * (num_ranks / ranks_per_batch);
  const Window window = nearest_window(samples, at_once);
  if (window.samples != samples) {
    run_->remark = format(
        "a step has {} samples instead of the {} of "
        "ElasticOptions::global_batch_size: {} ranks read {} at once",
        window.samples,
        samples,
        num_ranks,
        at_once);
  } else if (is_per_rank && hides_first_size(*run_)) {
    run_->remark = format(
        "ElasticBatch::per_rank needs the number of ranks with which the group "
        "began, but {} does not give it; the {} ranks of now read "
        "ElasticOptions::global_batch_size samples per step",
        run_->identity.launcher,
        num_ranks);
  }
  return static_cast<int>(window.steps);
}

}  // namespace accelerate
