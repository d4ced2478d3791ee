#include "checkpoint/run/checkpoints.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/run/save_target.h"
#include "checkpoint/save/checkpoint_writer.h"
#include "checkpoint/save/snapshot.h"
#include "comm/group/group_impl.h"
#include "gate/gate.h"
#include "gate/watched_tensor.h"

namespace accelerate::detail {

namespace {

std::shared_ptr<SaveProgress> skipped(std::filesystem::path path) {
  auto progress = std::make_shared<SaveProgress>();
  progress->path = std::move(path);
  progress->is_done = true;
  progress->was_skipped = true;
  return progress;
}

std::unique_ptr<CheckpointWriter> make_writer(
    CheckpointState& checkpoints,
    const SaveTarget& target,
    const SaveStateOptions& options) {
  SaveJob job{
      .contents = CheckpointContents(),
      .target = target.path,
      .iteration = target.iteration,
      .rank = checkpoints.world.rank(),
      .num_processes = checkpoints.world.size(),
      .deleted = target.deleted,
      .disk = checkpoints.disk,
      .logger = checkpoints.world.logger(),
      .safe_serialization = options.safe_serialization,
      .layout = options.layout,
      .require_intact = [world = checkpoints.world] { require_intact(world); },
      .is_part = checkpoints.machine_directory.has_value(),
      .known_left_out = checkpoints.known_left_out};
  return std::make_unique<CheckpointWriter>(
      std::move(job), checkpoints.save_group());
}

// Whether tensors lie in files because memory cannot hold them, let alone their
// copies.
bool lies_in_files(const CheckpointContents& contents) {
  return std::ranges::any_of(contents.sections, [](const Section& section) {
    return std::ranges::any_of(section.entries, [](const SectionEntry& entry) {
      const GateKeeper* const keeper = keeper_of(entry.tensor);
      return keeper != nullptr && keeper->brings_memory();
    });
  });
}

// An asynchronous save whose copies exceed the memory limit is written
// synchronously.
bool is_written_in_background(
    const CheckpointState& checkpoints,
    const CheckpointContents& contents,
    const SaveStateOptions& options) {
  if (!options.asynchronous) return false;
  if (lies_in_files(contents)) {
    checkpoints.world.logger().log(
        LogLevel::info,
        "checkpoint",
        "an asynchronous save would hold what lies in files in memory; it is "
        "written at once");
    return false;
  }
  const std::uint64_t wanted = SnapshotMemory::bytes_for(contents);
  if (options.memory_limit == 0 || wanted <= options.memory_limit) return true;
  checkpoints.world.logger().log(
      LogLevel::info,
      "checkpoint",
      format(
          "an asynchronous save would hold {} bytes, more than memory_limit; "
          "it is written at once",
          wanted));
  return false;
}

void leave_error_to_ticket(SaveProgress& progress) {
  const std::lock_guard lock(progress.mutex);
  progress.was_reported = true;
}

}  // namespace

SaveTicket save_checkpoint(
    CheckpointState& checkpoints,
    const std::filesystem::path& output_dir,
    const SaveStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components) {
  ProjectConfiguration& project = checkpoints.project;
  checkpoints.agreement.require_same_call("save_state", output_dir.string());
  SaveTarget target = agree_on_target(checkpoints, output_dir, options);
  if (target.is_skipped) return SaveTicket(skipped(target.path));
  checkpoints.saver.wait();

  std::string failure;
  const bool is_leader_of_other_node =
      !checkpoints.agreement.is_leader() && checkpoints.is_first_writer();
  if (is_leader_of_other_node && output_dir.empty()) {
    try {
      target.deleted = checkpoints_to_prune(project, target.path);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  std::unique_ptr<CheckpointWriter> writer;
  try {
    writer = make_writer(checkpoints, target, options);
    if (failure.empty()) {
      SaveHookContext context{
          models, std::vector<bool>(models.size(), true), writer->directory()};
      for (const auto& [id, hook] : checkpoints.save_hooks) hook(context);
      writer->contents() = collect_contents(components(context.save_weights));
    }
  } catch (const std::exception& error) {
    // If the ranks write to one directory, all of them learn why it cannot be
    // created.
    if (writer == nullptr && !checkpoints.is_per_node()) throw;
    failure = error.what();
  }
  checkpoints.agreement.require_success(
      failure,
      "save_state",
      format("[checkpoint] {} was not saved:\n", target.path.string()));
  std::shared_ptr<SaveProgress> progress;
  if (is_written_in_background(checkpoints, writer->contents(), options)) {
    progress = checkpoints.saver.start(std::move(writer));
  } else {
    writer->set_progress(checkpoints.show_progress(
        "save_state", SnapshotMemory::bytes_for(writer->contents())));
    progress = checkpoints.saver.run(std::move(writer));
  }
  // The run asks the tickets of the states that it keeps for itself, so that
  // the program's next save does not report them.
  if (checkpoints.is_whole) leave_error_to_ticket(*progress);
  if (output_dir.empty() || project.iteration) {
    project.iteration = target.iteration + 1;
  }
  return SaveTicket(std::move(progress));
}

}  // namespace accelerate::detail
