#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/require.h"
#include "base/text.h"
#include "comm/collectives/group_impl.h"
#include "train/elastic/elastic_run.h"
#include "train/elastic/memory_states.h"

namespace accelerate {

namespace {

using detail::ElasticRun;
using detail::format;
using detail::MemoryStates;
using detail::Settings;
using detail::StateFile;

const Settings& settings_of(const Accelerator& accelerator) {
  return accelerator.world().group().impl()->world->settings;
}

bool names_checkpoints(const Accelerator& accelerator) {
  const ProjectConfiguration& project = accelerator.project_configuration();
  return project.automatic_checkpoint_naming && !project.project_dir.empty();
}

bool keeps_states(const ElasticRun& run, const Accelerator& accelerator) {
  const bool is_told =
      settings_of(accelerator).text("redundancy") == "neighbour";
  return run.options.redundancy.value_or(
             is_told ? Redundancy::neighbour : Redundancy::none) ==
      Redundancy::neighbour;
}

// 0: no states are kept.
int steps_between_states(
    const ElasticRun& run,
    const Accelerator& accelerator) {
  const auto& given = run.options.redundancy_steps;
  if (given) detail::require_at_least("train", "redundancy_steps", *given, 1);
  if (!keeps_states(run, accelerator)) return 0;
  return given.value_or(
      static_cast<int>(*settings_of(accelerator).integer("redundancy_steps")));
}

// Empty if there is no directory in memory that all ranks share.
std::filesystem::path memory_directory(
    const ElasticRun& run,
    const World& world) {
  if (world.local_size() != world.size()) return {};
  return run.options.memory_dir.empty()
      ? std::filesystem::path(run.identity.memory_directory)
      : run.options.memory_dir;
}

void require_directory(const ElasticRun& run, const Accelerator& accelerator) {
  if (steps_between_states(run, accelerator) == 0) return;
  const World& world = accelerator.world();
  if (world.local_size() != world.size()) {
    throw ConfigError(format(
        "[train] Redundancy::neighbour keeps states in the memory of one "
        "machine, and {} of the {} ranks are on this one; leave it out, and "
        "save checkpoints of the project instead",
        world.local_size(),
        world.size()));
  }
  if (!memory_directory(run, world).empty()) return;
  throw ConfigError(
      "[train] Redundancy::neighbour needs a directory in memory, which this "
      "launcher does not name; give ElasticOptions::memory_dir one, or start "
      "the program with accelerate-cpp launch");
}

// The states in memory and the project's newest checkpoint, the newest first,
// as rank 0 sees them. The latter is an empty path, since resume() chooses it.
std::vector<std::filesystem::path> agree_on_states(
    ElasticRun& run,
    const Accelerator& accelerator) {
  const World& world = accelerator.world();
  const auto directory = memory_directory(run, world);
  const auto of_project = names_checkpoints(accelerator)
      ? accelerator.latest_checkpoint()
      : std::nullopt;
  std::vector<std::string> paths;
  if (world.rank() == 0) {
    std::vector<StateFile> states;
    if (!directory.empty()) {
      const MemoryStates memory(directory);
      memory.tidy(/*parts=*/true);
      states = memory.list();
      run.num_saves = memory.next_number();
    }
    for (const StateFile& state : states) paths.push_back(state.path.string());
    if (of_project) {
      std::filesystem::file_time_type time{};
      std::error_code error;
      time = last_write_time(*of_project / "manifest.json", error);
      // Python's checkpoints have no manifest.
      if (error) time = last_write_time(*of_project, error);
      const auto older =
          std::find_if(states.begin(), states.end(), [&](const auto& state) {
            return state.time < time;
          });
      paths.insert(paths.begin() + (older - states.begin()), std::string());
    }
  }
  std::vector<std::string> told{std::to_string(run.num_saves)};
  told.insert(told.end(), paths.begin(), paths.end());
  const std::vector<std::string> lines = detail::split(
      world.group().broadcast_bytes(detail::join(told, "\n"), 0), '\n');
  run.num_saves =
      static_cast<int>(detail::parse_int(lines.front()).value_or(0));
  return {lines.begin() + 1, lines.end()};
}

SaveTicket save_in_memory(
    ElasticRun& run,
    const Accelerator& accelerator,
    bool asynchronous) {
  const World& world = accelerator.world();
  const MemoryStates memory(memory_directory(run, world));
  std::string problem;
  try {
    if (world.rank() == 0) memory.make_directory();
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  if (!std::exchange(run.has_directory, true)) {
    problem = world.group().broadcast_bytes(problem, 0);
    if (!problem.empty()) throw ConfigError(problem);
  }
  const SaveTicket ticket = accelerator.save_state(
      memory.path_of(run.identity.generation, run.num_saves),
      {.asynchronous = asynchronous,
       .when_busy = asynchronous ? WhenBusy::skip : WhenBusy::wait});
  if (!ticket.was_skipped()) ++run.num_saves;
  return ticket;
}

void keep_state(ElasticRun& run, const Accelerator& accelerator) {
  const World& world = accelerator.world();
  if (run.newest && run.newest->is_done() && world.rank() == 0)
    MemoryStates(memory_directory(run, world)).tidy(/*parts=*/false);
  const SaveTicket ticket = save_in_memory(run, accelerator, true);
  if (!ticket.was_skipped()) run.newest = ticket;
}

void save_to_leave(ElasticRun& run, const Accelerator& accelerator) {
  if (run.is_resizing && !memory_directory(run, accelerator.world()).empty()) {
    save_in_memory(run, accelerator, false).wait();
  } else if (names_checkpoints(accelerator)) {
    accelerator.save_state().wait();
  } else {
    accelerator.world().logger().log_once_per_world(
        LogLevel::warning,
        "train",
        "the ranks were told to leave, and nothing was saved: the project does "
        "not name its checkpoints (automatic_checkpoint_naming, project_dir)");
  }
  // Nobody closes its connections while another still needs them.
  accelerator.wait_for_everyone();
}

// The generation that the ranks are to leave for, the same on all: the present
// one if they stay.
std::uint32_t agree_on_generation(
    const ElasticRun& run,
    const Accelerator& accelerator) {
  const at::Tensor wanted =
      at::full({}, static_cast<std::int64_t>(run.seat->wanted()), at::kLong);
  accelerator.world().group().all_reduce(wanted, ReduceOp::max);
  return static_cast<std::uint32_t>(wanted.item<std::int64_t>());
}

}  // namespace

ElasticContext::ElasticContext(std::shared_ptr<ElasticRun> run)
    : run_(std::move(run)) {}

int ElasticContext::generation() const {
  return std::max(run_->identity.generation, 1);
}

int ElasticContext::num_processes() const { return run_->identity.size; }

int ElasticContext::process_index() const { return run_->identity.rank; }

int ElasticContext::gradient_accumulation_steps(
    std::int64_t batch_size,
    int ranks_per_batch) const {
  const std::int64_t samples = run_->options.global_batch_size;
  if (samples < 1) {
    throw ConfigError(format(
        "[train] gradient_accumulation_steps() needs "
        "ElasticOptions::global_batch_size, which is {}; give the number of "
        "samples of a step on all ranks",
        samples));
  }
  if (batch_size < 1 || ranks_per_batch < 1 ||
      num_processes() % ranks_per_batch != 0) {
    throw ConfigError(format(
        "[train] gradient_accumulation_steps() was given batches of {} for {} "
        "of {} ranks each; batches have 1 sample or more, and the ranks that "
        "share one divide all ranks",
        batch_size,
        ranks_per_batch,
        num_processes()));
  }
  const std::int64_t at_once = batch_size * (num_processes() / ranks_per_batch);
  const std::int64_t window =
      std::max<std::int64_t>((samples + at_once / 2) / at_once, 1);
  if (window * at_once != samples) {
    run_->remark = format(
        "a step has {} samples instead of the {} of "
        "ElasticOptions::global_batch_size: {} ranks read {} at once",
        window * at_once,
        samples,
        num_processes(),
        at_once);
  }
  return static_cast<int>(window);
}

bool ElasticContext::resume(
    const Accelerator& accelerator,
    const LoadStateOptions& options) const {
  require_directory(*run_, accelerator);
  if (!run_->remark.empty()) {
    accelerator.world().logger().log_once_per_world(
        LogLevel::warning, "train", run_->remark);
  }
  for (const auto& path : agree_on_states(*run_, accelerator)) {
    if (path.empty()) return accelerator.resume(options);
    try {
      accelerator.load_state(path, options);
      return true;
    } catch (const CheckpointError& error) {
      accelerator.world().logger().log_once_per_world(
          LogLevel::warning,
          "train",
          format("a state in memory is passed over: {}", error.what()));
    }
  }
  return false;
}

bool ElasticContext::step_done(const Accelerator& accelerator) const {
  if (!accelerator.sync_gradients()) return false;
  ElasticRun& run = *run_;
  ++run.num_steps;
  const int interval = steps_between_states(run, accelerator);
  run.is_preempted = accelerator.check_preemption();
  if (!run.is_preempted && run.seat != nullptr) {
    const std::uint32_t next = agree_on_generation(run, accelerator);
    run.is_resizing = next > static_cast<std::uint32_t>(generation());
    if (run.is_resizing) run.seat->leave_for(next);
  }
  if (run.is_preempted || run.is_resizing) {
    save_to_leave(run, accelerator);
    return true;
  }
  if (interval > 0) {
    if (run.num_steps == 1) require_directory(run, accelerator);
    if (run.num_steps % interval == 0) keep_state(run, accelerator);
  }
  return false;
}

bool ElasticContext::resizing() const { return run_->is_resizing; }

bool ElasticContext::preempted() const { return run_->is_preempted; }

}  // namespace accelerate
