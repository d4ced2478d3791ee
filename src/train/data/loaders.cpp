#include <accelerate/accelerator.h>
#include <accelerate/context_parallel.h>
#include <accelerate/error.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include "base/text/text.h"
#include "comm/mesh.h"
#include "train/session/session.h"

namespace accelerate {

namespace {

using detail::LoaderContext;
using detail::LoaderProgress;
using detail::Session;

// Each rank sends its batch rank and its generator's seed. All use rank 0's
// seed, so that torch::manual_seed there determines the order of data.
void exchange_batch_ranks(const Session& session, LoaderContext& context) {
  const std::vector<std::int64_t> mine{
      context.batch_rank,
      static_cast<std::int64_t>(
          at::globalContext().defaultGenerator(at::kCPU).current_seed())};
  context.batch_ranks.clear();
  for (const at::Tensor& of_rank :
       session.world.group().all_gather(at::tensor(mine, at::kLong))) {
    const auto* const values = of_rank.const_data_ptr<std::int64_t>();
    if (context.batch_ranks.empty())
      context.seed = static_cast<std::uint64_t>(values[1]);
    context.batch_ranks.push_back(static_cast<int>(values[0]));
  }
}

void synchronize_generators(const Session& session) {
  std::vector<RNGType> types = session.loading.rng_types;
  std::erase(types, RNGType::generator);
  if (types.empty()) return;
  detail::require_no_join(
      session, "a pass with rng_types synchronises generators");
  synchronize_rng_states(session.world, types);
}

void end_batch(Session& session, LoaderProgress& progress) {
  if (progress.num_micro_steps > 0)
    session.clock.note_batch(std::exchange(progress.num_micro_steps, 0));
}

// Tells the session how far a loop over the loader is.
void report_progress(
    const std::shared_ptr<Session>& session,
    LoaderContext& context) {
  auto progress = std::make_shared<LoaderProgress>();
  progress->index = session->loading.num_loaders++;
  context.begin = [session, progress, serial = session->loading.num_releases] {
    if (session->loading.num_releases != serial)
      detail::throw_released("a new loader");
    synchronize_generators(*session);
    *progress = {.index = progress->index};
    session->loading.active.push_back(progress.get());
  };
  context.end = [session, progress] {
    end_batch(*session, *progress);
    std::erase(session->loading.active, progress.get());
  };
  context.on_batch = [session, progress](bool is_last, std::int64_t remainder) {
    end_batch(*session, *progress);
    ++progress->num_batches;
    progress->is_last_batch = is_last;
    progress->remainder = remainder;
  };
}

// Reduces tensors to this rank's positions. Their memory may be the dataset's,
// so it is not modified.
void divide(
    const Group& group,
    const BatchSequences& sequences,
    const std::vector<at::Tensor*>& tensors) {
  const std::size_t count = sequences.dims.size();
  if (tensors.size() != count ||
      (!sequences.pad_values.empty() && sequences.pad_values.size() != count)) {
    throw ConfigError(detail::format(
        "[train] sequences of a loader have {} dims and {} pad_values, but a "
        "batch has {} tensors; set one of each per tensor, and an unset dim "
        "for a tensor without a sequence",
        count,
        sequences.pad_values.size(),
        tensors.size()));
  }
  std::vector<at::Tensor> buffers;
  std::vector<std::int64_t> dims;
  ContextParallelOptions options;
  if (sequences.contiguous) options.cut = SequenceCut::contiguous;
  for (std::size_t i = 0; i < count; ++i) {
    at::Tensor& tensor = *tensors[i];
    if (!sequences.dims[i] || !tensor.defined()) continue;
    tensor = tensor.variable_data();
    buffers.push_back(tensor);
    dims.push_back(*sequences.dims[i]);
    if (!sequences.pad_values.empty())
      options.pad_values.push_back(sequences.pad_values[i]);
  }
  if (buffers.empty()) return;
  const ContextParallelScope cut(group, buffers, dims, buffers, options);
}

}  // namespace

detail::LoaderContext Accelerator::loader_context() const {
  LoaderContext context;
  context.batch_rank = session_->layout.mesh.batch_rank();
  context.batch_count = session_->layout.mesh.batch_count();
  context.device = device();
  context.group = world().group();
  context.steps = session_->services.steps;
  context.logger = world().logger();
  context.progress = session_->services.checkpoints->progress;
  context.defaults = session_->loading.config;
  context.places_by_default = session_->loading.device_placement;
  context.seeds_order =
      std::ranges::find(session_->loading.rng_types, RNGType::generator) !=
      session_->loading.rng_types.end();
  exchange_batch_ranks(*session_, context);
  if (session_->loading.config.use_stateful_dataloader) {
    // Drops the slots of loaders that could not be prepared.
    session_->services.checkpoints->live_loaders();
    context.slot = std::make_shared<detail::LoaderSlot>();
    session_->services.checkpoints->loaders.push_back(context.slot);
  }
  context.divide = [group = session_->layout.mesh.group(Axis::context)](
                       const BatchSequences& sequences,
                       const std::vector<at::Tensor*>& tensors) {
    divide(group, sequences, tensors);
  };
  context.even_batches = [session = session_] {
    return session->join.even_batches;
  };
  report_progress(session_, context);
  return context;
}

DataLoaderConfiguration& Accelerator::dataloader_config() const {
  return session_->loading.config;
}

}  // namespace accelerate
