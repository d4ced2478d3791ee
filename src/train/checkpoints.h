#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <accelerate/checkpoint.h>
#include <accelerate/loader_link.h>
#include <accelerate/state_dict.h>
#include <accelerate/world.h>

#include "base/file_system.h"
#include "checkpoint/contents.h"
#include "checkpoint/saver.h"
#include "checkpoint/tensor_tree.h"
#include "comm/meeting.h"
#include "comm/watch.h"
#include "params/optimizer_state.h"

namespace accelerate::detail {

struct Session;
struct PreparedModel;
struct PreparedOptimizer;

/// An object of the user's that checkpoints hold.
struct RegisteredObject {
  std::function<StateDict()> state_dict;
  std::function<void(const StateDict&)> load_state_dict;
};

template <class Hook>
using HookList = std::vector<std::pair<std::int64_t, Hook>>;

/// What a session needs for checkpoints.
struct Checkpoints {
  explicit Checkpoints(ProjectConfiguration configuration)
      : project(std::move(configuration)) {}
  /// Waits for the save under way; not for other ranks while an exception is on
  /// its way out.
  ~Checkpoints();

  ProjectConfiguration project;
  std::shared_ptr<FileSystem> disk = make_file_system();
  std::vector<RegisteredObject> objects;
  /// Of prepared loaders, in their order.
  std::vector<std::shared_ptr<LoaderSlot>> loaders;
  HookList<std::function<void(SaveHookContext&)>> save_hooks;
  HookList<std::function<void(LoadHookContext&)>> load_hooks;
  std::int64_t next_hook = 0;
  /// Where ranks agree on what they call, and where a save goes on; made when
  /// first needed.
  std::unique_ptr<Watch> watch;
  std::optional<Meeting> calls;
  std::optional<Meeting> saves;
  /// The ranks that write one folder: all, or those of this machine.
  std::vector<int> writers;
  /// Joined before what it uses goes.
  Saver saver;
};

/// Makes the meetings. Collective the first time.
void open_meetings(Session& session);

/// All ranks are in `call` with the same `arguments`. Throws DistributedError
/// with each rank's call if they are not.
void require_same_call(
    Session& session,
    const std::string& call,
    const std::string& arguments);

/// Every rank says what failed for it, empty for nothing. If anything did, all
/// throw CheckpointError that begins with `what`.
void require_success(
    Session& session,
    const std::string& failure,
    const std::string& call,
    const std::string& what);

/// Slots of loaders, without those at the end whose loaders are gone.
const std::vector<std::shared_ptr<LoaderSlot>>& live_loaders(
    const Session& session);

/// The tensors of a model: parameters, then buffers, each once.
Part model_part(
    const Session& session,
    const PreparedModel& model,
    std::size_t i);

/// The name by which an optimizer's state knows a tensor it steps on.
NameOfParameter parameter_names(
    const Session& session,
    const PreparedOptimizer& optimizer);

/// A part, the grid of ranks it is part of, and where optimizers step on it.
struct SplitLayout {
  Layout layout;
  const Mesh* mesh = nullptr;
  at::Device device = at::kCPU;
};

/// By the names that parameter_names() gives; those that are split only.
std::map<std::string, SplitLayout> split_layouts(const Session& session);

/// This rank is the one that writes a tensor of this layout.
bool writes(const Session& session, const Mesh& mesh, const Layout& layout);

/// Parameters that an optimizer steps on in another precision than the model
/// has: names of the state, and the tensors.
std::vector<std::pair<std::string, at::Tensor>> masters_of(
    const Session& session,
    const PreparedOptimizer& optimizer);

}  // namespace accelerate::detail
