#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <accelerate/checkpoint.h>
#include <accelerate/detail/loader_link.h>
#include <accelerate/world.h>

#include "base/file_system.h"
#include "checkpoint/component.h"
#include "checkpoint/components/models.h"
#include "checkpoint/save/saver.h"
#include "comm/monitoring/rank_agreement.h"
#include "comm/monitoring/store_group.h"

namespace accelerate::detail {

template <class Hook>
using HookList = std::vector<std::pair<std::int64_t, Hook>>;

/// Lists everything that has a state; models only where `with_weights`, one for
/// each, says so.
using ListComponents =
    std::function<ComponentList(const std::vector<bool>& with_weights)>;

/// What an accelerator keeps for its checkpoints, from one to the next.
struct Checkpoints {
  /// `rank_agreement` must outlive it.
  Checkpoints(
      const World& ranks,
      RankAgreement& rank_agreement,
      ProjectConfiguration configuration);
  /// Waits for the save under way; not for other ranks while an exception is on
  /// its way out.
  ~Checkpoints();

  World world;
  RankAgreement& agreement;
  ProjectConfiguration project;
  std::shared_ptr<FileSystem> disk = make_file_system();
  /// Objects of the user's, in the order of their registration.
  std::vector<AnyStateful> objects;
  /// Those of prepared loaders, in their order.
  std::vector<std::shared_ptr<LoaderSlot>> loaders;
  /// What else has a state: a feature that has one adds itself here.
  ComponentList components;
  HookList<std::function<void(SaveHookContext&)>> save_hooks;
  HookList<std::function<void(LoadHookContext&)>> load_hooks;
  std::int64_t next_hook = 0;
  /// The ranks that write one directory: all, or those of this machine.
  std::vector<int> writers;
  /// Where they meet to write; made when first needed.
  std::optional<StoreGroup> saves;
  /// Joined before what it uses goes.
  Saver saver;

  [[nodiscard]] WriterRule writer_rule() const {
    return {project.save_on_each_node, is_first_writer()};
  }
  /// This rank writes what a directory holds once.
  [[nodiscard]] bool is_first_writer() const {
    return writers.front() == world.rank();
  }
  /// This rank chooses a checkpoint for the ranks that see the same disk.
  [[nodiscard]] bool chooses() const {
    return agreement.is_leader() || project.save_on_each_node;
  }
  StoreGroup& save_group();
  /// Slots of loaders, without those at the end whose loaders are gone.
  const std::vector<std::shared_ptr<LoaderSlot>>& live_loaders();
};

}  // namespace accelerate::detail
