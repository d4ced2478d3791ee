#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/accelerator.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/run/checkpoints.h"
#include "comm/group/group_impl.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "train/elastic/elastic_run.h"
#include "train/elastic/machine_states.h"
#include "train/elastic/memory_states.h"
#include "train/session/session.h"

namespace accelerate {

namespace {

using detail::ElasticRun;
using detail::format;
using detail::MachineStates;
using detail::MemoryState;
using detail::MemoryStates;

bool names_checkpoints(const Accelerator& accelerator) {
  const ProjectConfiguration& project =
      accelerator.checkpoints().project_configuration();
  return project.automatic_checkpoint_naming && !project.project_dir.empty();
}

// Empty if there is no directory in memory.
std::filesystem::path memory_directory(const ElasticRun& run) {
  return run.options.memory_dir.empty()
      ? std::filesystem::path(run.identity.memory_directory)
      : run.options.memory_dir;
}

void require_directory(const ElasticRun& run) {
  if (run.kept.steps_between == 0) return;
  if (!memory_directory(run).empty()) return;
  throw ConfigError(
      "[train] Redundancy::neighbour needs a directory in memory, but this "
      "launcher provides none; set ElasticOptions::memory_dir, or start the "
      "program with accelerate-cpp launch");
}

// The states that several machines keep; null on a single machine that no other
// may join, and if none are kept. Collective on first use.
MachineStates* machines_of(ElasticRun& run, const Accelerator& accelerator) {
  const World& world = accelerator.world();
  const bool may_change = run.seat != nullptr && run.seat->spans_machines();
  const bool is_one_machine = world.local_size() == world.size();
  if (!may_change && (run.kept.steps_between == 0 || is_one_machine))
    return nullptr;
  if (run.kept.machines == nullptr) {
    run.kept.machines = std::make_shared<MachineStates>(
        world, memory_directory(run), may_change);
    run.kept.machines->make_directories();
  }
  return run.kept.machines.get();
}

// The number of the project's newest checkpoint; -1 if it has none.
std::int64_t newest_checkpoint(const Accelerator& accelerator) {
  if (!names_checkpoints(accelerator)) return -1;
  const auto entries = detail::list_checkpoints(
      std::filesystem::path(
          accelerator.checkpoints().project_configuration().project_dir) /
      detail::kCheckpointsDirectory);
  const detail::CheckpointEntry* const newest = detail::newest_of(entries);
  return newest == nullptr ? -1 : *newest->number;
}

// The states in this machine's memory, newest first, and the number of the next
// one.
struct FoundStates {
  std::vector<MemoryState> states;
  std::int64_t next_number = 0;
};

FoundStates find_states(ElasticRun& run, const World& world) {
  FoundStates found;
  if (run.kept.machines != nullptr) {
    found.states = run.kept.machines->survey();
    found.next_number = run.kept.machines->next_number();
    return found;
  }
  const auto directory = memory_directory(run);
  const bool is_on_one_machine = world.local_size() == world.size();
  if (world.rank() != 0 || directory.empty() || !is_on_one_machine)
    return found;
  const MemoryStates memory(directory);
  memory.tidy(/*parts=*/true);
  found.states = memory.list();
  if (!found.states.empty())
    found.next_number = found.states.front().number + 1;
  return found;
}

// The states in memory and the project's newest checkpoint, newest first, as
// rank 0 sees them. The checkpoint is an empty path, since resume() chooses it.
std::vector<std::filesystem::path> agree_on_states(
    ElasticRun& run,
    const Accelerator& accelerator) {
  const World& world = accelerator.world();
  std::vector<std::string> told;
  const auto [states, next_number] = find_states(run, world);
  if (world.rank() == 0) {
    const std::int64_t newest = newest_checkpoint(accelerator);
    told = {std::to_string(next_number), std::to_string(newest + 1)};
    for (const MemoryState& state : states) {
      if (newest >= state.next_checkpoint) break;
      told.push_back(state.path.string());
    }
    if (newest >= 0) told.emplace_back();
    for (const MemoryState& state : states) {
      if (newest >= state.next_checkpoint) told.push_back(state.path.string());
    }
  }
  const std::vector<std::string> lines = detail::split(
      world.group().broadcast_bytes(detail::join(told, "\n"), 0), '\n');
  run.kept.num_saves = detail::parse_int(lines.at(0)).value_or(0);
  run.kept.next_checkpoint = detail::parse_int(lines.at(1)).value_or(0);
  return {lines.begin() + 2, lines.end()};
}

SaveTicket save_in_memory(
    ElasticRun& run,
    const Accelerator& accelerator,
    bool asynchronous) {
  const World& world = accelerator.world();
  const MemoryStates memory(memory_directory(run));
  std::string problem;
  try {
    if (world.rank() == 0) memory.make_directory();
  } catch (const ConfigError& error) {
    problem = error.what();
  }
  if (!std::exchange(run.kept.has_directory, true)) {
    problem = world.group().broadcast_bytes(problem, 0);
    if (!problem.empty()) throw ConfigError(problem);
  }
  const std::int64_t next_checkpoint =
      accelerator.checkpoints().project_configuration().iteration.value_or(
          run.kept.next_checkpoint);
  const detail::WholeStateScope whole(
      *detail::AcceleratorAccess::session(accelerator).services.checkpoints);
  const SaveTicket ticket = accelerator.save_state(
      memory.path_of(
          run.identity.generation, run.kept.num_saves, next_checkpoint),
      {.asynchronous = asynchronous,
       .when_busy = asynchronous ? WhenBusy::skip : WhenBusy::wait});
  if (!ticket.was_skipped()) ++run.kept.num_saves;
  return ticket;
}

std::string next_name(const ElasticRun& run, const Accelerator& accelerator) {
  const std::int64_t next_checkpoint =
      accelerator.checkpoints().project_configuration().iteration.value_or(
          run.kept.next_checkpoint);
  return MemoryStates({})
      .path_of(run.identity.generation, run.kept.num_saves, next_checkpoint)
      .string();
}

// save_in_memory() on several machines.
void begin_on_machines(ElasticRun& run, const Accelerator& accelerator) {
  if (run.kept.machines->begin(accelerator, next_name(run, accelerator)))
    ++run.kept.num_saves;
}

// Called before machines leave or join. If the state cannot be saved, the ranks
// go back to the previous one.
void save_on_machines(ElasticRun& run, const Accelerator& accelerator) {
  try {
    machines_of(run, accelerator)
        ->keep_whole(accelerator, next_name(run, accelerator));
  } catch (const CheckpointError& error) {
    accelerator.world().logger().log_once_per_world(
        LogLevel::warning,
        "train",
        format(
            "the ranks resume from the state before this step: {}",
            error.what()));
  }
}

detail::Saver& saver_of(const Accelerator& accelerator) {
  return detail::AcceleratorAccess::session(accelerator)
      .services.checkpoints->saver;
}

// A state that cannot be kept must not end the training that it protects. Makes
// room for the next one.
void warn_of_unkept_state(
    const ElasticRun& run,
    const Accelerator& accelerator,
    const char* consequence,
    const CheckpointError& error) {
  const World& world = accelerator.world();
  world.logger().log_once_per_world(
      LogLevel::warning, "train", format("{}: {}", consequence, error.what()));
  if (world.rank() == 0)
    MemoryStates(memory_directory(run)).tidy(/*parts=*/true, /*num_kept=*/1);
}

// Called on all ranks while rank 0 is not saving. Throws the error of a save of
// the program's own, which the next save would throw where errors of states in
// memory are caught.
void keep_state(ElasticRun& run, const Accelerator& accelerator) {
  constexpr const char* kConsequence =
      "a state was not kept in memory, and training continues without it";
  saver_of(accelerator).wait();
  if (run.kept.machines != nullptr) return begin_on_machines(run, accelerator);
  try {
    if (run.kept.newest && run.kept.newest->is_done()) {
      std::exchange(run.kept.newest, std::nullopt)->wait();
      if (accelerator.world().rank() == 0)
        MemoryStates(memory_directory(run)).tidy(/*parts=*/false);
    }
  } catch (const CheckpointError& error) {
    warn_of_unkept_state(run, accelerator, kConsequence, error);
  }
  try {
    const SaveTicket ticket = save_in_memory(run, accelerator, true);
    if (!ticket.was_skipped()) run.kept.newest = ticket;
  } catch (const CheckpointError& error) {
    // All ranks get the same error.
    warn_of_unkept_state(run, accelerator, kConsequence, error);
  }
}

void save_before_resizing(ElasticRun& run, const Accelerator& accelerator) {
  try {
    save_in_memory(run, accelerator, false).wait();
  } catch (const CheckpointError& error) {
    warn_of_unkept_state(
        run,
        accelerator,
        "the ranks resume from the state before this step",
        error);
  }
}

void save_to_leave(ElasticRun& run, const Accelerator& accelerator) {
  if (run.is_resizing) saver_of(accelerator).wait();
  if (run.is_resizing && run.seat->spans_machines()) {
    save_on_machines(run, accelerator);
  } else if (run.is_resizing && !memory_directory(run).empty()) {
    save_before_resizing(run, accelerator);
  } else if (names_checkpoints(accelerator)) {
    accelerator.save_state().wait();
  } else {
    accelerator.world().logger().log_once_per_world(
        LogLevel::warning,
        "train",
        "the ranks were told to leave, and nothing was saved: the project does "
        "not name its checkpoints (automatic_checkpoint_naming, project_dir)");
  }
  // No rank closes its connections while another still needs them.
  accelerator.wait_for_everyone();
}

// What all ranks decide after a step.
struct Verdict {
  bool is_preempted = false;
  /// The generation for which the ranks must leave; 0 if only the current one
  /// was ever requested.
  std::int64_t generation = 0;
  /// How far the slowest rank is with the state being kept on machines.
  MachineStates::Progress progress = MachineStates::done;
  /// Whether rank 0 still writes its part of a save; other ranks may still
  /// write theirs as well.
  bool is_saving = false;
};

Verdict
agree(ElasticRun& run, const Accelerator& accelerator, bool is_told_to_end) {
  const std::int64_t wanted = run.seat != nullptr ? run.seat->wanted() : 0;
  const at::Tensor most = at::empty({4}, at::kLong);
  auto* const values = most.mutable_data_ptr<std::int64_t>();
  values[0] = is_told_to_end ? 1 : 0;
  values[1] = wanted;
  values[2] = run.kept.machines != nullptr ? run.kept.machines->progress()
                                           : MachineStates::done;
  const World& world = accelerator.world();
  values[3] = world.rank() == 0 && saver_of(accelerator).is_busy() ? 1 : 0;
  world.group().all_reduce(most, ReduceOp::max);
  return {
      values[0] != 0,
      values[1],
      static_cast<MachineStates::Progress>(values[2]),
      values[3] != 0};
}

// Loads the first of these states, from agree_on_states(), that can be loaded.
// Returns whether one could.
bool load_first(
    ElasticRun& run,
    const Accelerator& accelerator,
    const std::vector<std::filesystem::path>& paths,
    const LoadStateOptions& options) {
  for (const auto& path : paths) {
    if (path.empty()) return accelerator.resume(options);
    try {
      if (run.kept.machines != nullptr) {
        run.kept.machines->load(accelerator, path.string(), options);
      } else {
        const detail::WholeStateScope whole(
            *detail::AcceleratorAccess::session(accelerator)
                 .services.checkpoints);
        accelerator.load_state(path, options);
      }
      return true;
    } catch (const CheckpointError& error) {
      accelerator.world().logger().log_once_per_world(
          LogLevel::warning,
          "train",
          format("a state in memory is skipped: {}", error.what()));
    }
  }
  return false;
}

// Reports what is loaded in place of a state in memory that has lost a part.
void tell_of_lost_state(
    const ElasticRun& run,
    const Accelerator& accelerator,
    const std::vector<std::filesystem::path>& paths) {
  if (run.kept.machines == nullptr || run.kept.machines->lost().empty()) return;
  accelerator.world().logger().log_once_per_world(
      LogLevel::warning,
      "train",
      format(
          "{}; resuming from {}",
          run.kept.machines->lost(),
          paths.empty()               ? "the beginning"
              : paths.front().empty() ? "the newest checkpoint of the project"
                                      : "an older state in memory"));
}

}  // namespace

ElasticContext::ElasticContext(std::shared_ptr<ElasticRun> run)
    : run_(std::move(run)) {}

int ElasticContext::generation() const {
  return std::max(run_->identity.generation, 1);
}

int ElasticContext::num_processes() const { return run_->identity.size; }

int ElasticContext::process_index() const { return run_->identity.rank; }

bool ElasticContext::resume(
    const Accelerator& accelerator,
    const LoadStateOptions& options) const {
  // run_elastic() read them before an Accelerator existed that could report
  // them.
  for (const std::string& key : run_->used_settings)
    accelerator.world().group().impl()->world->settings.mark_read(key);
  require_directory(*run_);
  const MachineStates* const machines = machines_of(*run_, accelerator);
  if (!run_->remark.empty()) {
    accelerator.world().logger().log_once_per_world(
        LogLevel::warning, "train", run_->remark);
  }
  const auto paths = agree_on_states(*run_, accelerator);
  tell_of_lost_state(*run_, accelerator, paths);
  const bool has_loaded = load_first(*run_, accelerator, paths, options);
  if (machines != nullptr) run_->kept.machines->settle();
  return has_loaded;
}

bool ElasticContext::step_done(const Accelerator& accelerator) const {
  if (!accelerator.sync_gradients()) return false;
  ElasticRun& run = *run_;
  ++run.num_steps;
  const Verdict verdict = agree(
      run,
      accelerator,
      detail::is_told_to_end(detail::AcceleratorAccess::session(accelerator)));
  if (run.kept.machines != nullptr)
    run.kept.machines->advance(verdict.progress);
  run.is_preempted = verdict.is_preempted;
  run.is_resizing = !run.is_preempted && verdict.generation > generation();
  if (run.is_resizing)
    run.seat->leave_for(static_cast<std::uint32_t>(verdict.generation));
  if (run.is_preempted || run.is_resizing) {
    save_to_leave(run, accelerator);
    return true;
  }
  const int interval = run.kept.steps_between;
  if (interval > 0) {
    if (run.num_steps == 1) {
      require_directory(run);
      machines_of(run, accelerator);
    }
    if (run.num_steps % interval == 0 && !verdict.is_saving)
      keep_state(run, accelerator);
  }
  return false;
}

bool ElasticContext::resizing() const { return run_->is_resizing; }

bool ElasticContext::preempted() const { return run_->is_preempted; }

}  // namespace accelerate
