#include "checkpoint/load/load_checkpoint.h"

#include <string>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/load/choose_checkpoint.h"

namespace accelerate::detail {

namespace {

template <class Body>
std::string failure_of(Body&& body) {
  try {
    std::forward<Body>(body)();
    return {};
  } catch (const std::exception& error) {
    return *error.what() == '\0' ? "unknown" : error.what();
  }
}

// Chooses on each node if each has its own disk, else on rank 0 for all.
template <class Choose>
std::filesystem::path agree_on_path(
    Checkpoints& checkpoints,
    const std::string& call,
    const Choose& choose) {
  std::filesystem::path path;
  const std::string failure = failure_of([&] {
    if (checkpoints.chooses()) path = choose();
  });
  checkpoints.agreement.require_success(failure, call, "");
  const std::string decided = checkpoints.agreement.decide(path.string(), call);
  return checkpoints.project.save_on_each_node ? path
                                               : std::filesystem::path(decided);
}

// A rank's own state is only usable if as many ranks saved.
void drop_other_ranks_state(const World& world, CheckpointSource& source) {
  if (source.num_processes == world.size()) return;
  source.rank_state.reset();
  world.logger().log_once_per_world(
      LogLevel::warning,
      "checkpoint",
      format(
          "{} was saved by {} processes and is loaded by {}; random states "
          "stay unchanged",
          source.directory.string(),
          source.num_processes,
          world.size()));
}

void require_no_complaints(
    const std::vector<std::string>& complaints,
    const std::filesystem::path& path,
    bool strict) {
  if (complaints.empty()) return;
  throw CheckpointError(format(
      "[checkpoint] {} does not fit what is prepared; nothing was loaded:\n  "
      "{}{}",
      path.string(),
      join(complaints, "\n  "),
      strict ? "\nLoadStateOptions: skip and allow_missing take "
               "patterns of names, strict = false takes what fits"
             : ""));
}

}  // namespace

std::vector<bool> load_checkpoint(
    Checkpoints& checkpoints,
    const std::filesystem::path& input_dir,
    const LoadStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components) {
  RankAgreement& agreement = checkpoints.agreement;
  agreement.require_same_call("load_state", input_dir.string());
  checkpoints.saver.wait();
  const MatchRules rules{options.strict, options.skip, options.allow_missing};
  LoadHookContext context{models, std::vector<bool>(models.size(), true), {}};
  const std::filesystem::path path =
      agree_on_path(checkpoints, "load_state", [&] {
        return choose_checkpoint(checkpoints, input_dir);
      });
  CheckpointSource source;
  ComponentList list;
  std::string failure = failure_of([&] {
    source = open_checkpoint(path, checkpoints.world.rank(), options.verify);
    for (const auto& [id, hook] : checkpoints.load_hooks) {
      context.input_dir = path;
      hook(context);
    }
    drop_other_ranks_state(checkpoints.world, source);
    list = components(context.load_weights);
    require_no_complaints(
        check_components(list, source, rules), path, options.strict);
  });
  agreement.require_success(failure, "load_state", "");
  failure = failure_of([&] { load_components(list, source, rules); });
  agreement.require_success(
      failure,
      "load_state",
      "[checkpoint] loading failed half-way; prepared objects have old and new "
      "states:\n");
  return context.load_weights;
}

std::optional<std::filesystem::path> agree_on_newest(Checkpoints& checkpoints) {
  checkpoints.agreement.require_same_call("latest_checkpoint", "");
  checkpoints.saver.wait();
  const std::filesystem::path newest =
      agree_on_path(checkpoints, "latest_checkpoint", [&] {
        return find_newest_checkpoint(checkpoints);
      });
  if (newest.empty()) return std::nullopt;
  return newest;
}

}  // namespace accelerate::detail
