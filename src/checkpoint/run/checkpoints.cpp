#include "checkpoint/run/checkpoints.h"

#include <exception>
#include <numeric>

#include "base/text/text.h"

namespace accelerate::detail {

CheckpointState::CheckpointState(
    const World& ranks,
    RankAgreement& rank_agreement,
    ProjectConfiguration configuration)
    : world(ranks),
      agreement(rank_agreement),
      project(std::move(configuration)) {
  const bool is_per_node = project.save_on_each_node && world.size() > 1;
  writers.resize(static_cast<std::size_t>(
      is_per_node ? world.local_size() : world.size()));
  // The ranks of a node are consecutive.
  std::iota(
      writers.begin(),
      writers.end(),
      is_per_node ? world.rank() - world.local_rank() : 0);
}

CheckpointState::~CheckpointState() {
  if (std::uncaught_exceptions() == 0) return;
  if (saves) saves->cancel();
  if (machine_saves) machine_saves->cancel();
}

StoreGroup& CheckpointState::save_group() {
  if (machine_directory) {
    if (!machine_saves) {
      machine_saves.emplace(
          world, format("saves of machine parts {}", writers.front()), writers);
    }
    return *machine_saves;
  }
  if (!saves) {
    saves.emplace(
        world, format("checkpoint saves of {}", writers.front()), writers);
  }
  return *saves;
}

MachinePartScope::MachinePartScope(
    CheckpointState& checkpoints,
    std::filesystem::path directory)
    : checkpoints_(checkpoints), writers_(checkpoints.writers) {
  const World& world = checkpoints_.world;
  checkpoints_.machine_directory = std::move(directory);
  checkpoints_.writers.resize(static_cast<std::size_t>(world.local_size()));
  std::iota(
      checkpoints_.writers.begin(),
      checkpoints_.writers.end(),
      world.rank() - world.local_rank());
}

MachinePartScope::~MachinePartScope() {
  checkpoints_.machine_directory.reset();
  checkpoints_.writers = std::move(writers_);
}

std::shared_ptr<ByteProgress> CheckpointState::show_progress(
    std::string call,
    std::optional<std::uint64_t> num_bytes) const {
  if (progress.disable) return nullptr;
  ProgressOptions options = progress;
  options.description = std::move(call);
  return std::make_shared<ByteProgress>(num_bytes, std::move(options));
}

const std::vector<std::shared_ptr<LoaderSlot>>&
CheckpointState::live_loaders() {
  while (!loaders.empty() && !loaders.back()->state_dict) loaders.pop_back();
  return loaders;
}

}  // namespace accelerate::detail
