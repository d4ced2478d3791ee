#include "checkpoint/run/checkpoints.h"

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/load/checkpoint_reader.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/checkpoint/commit.h"
#include "format/tensors/verified_read.h"

namespace accelerate::detail {

namespace {

void warn_passed_over(
    const CheckpointState& checkpoints,
    const std::filesystem::path& base,
    const std::vector<CheckpointEntry>& entries,
    const CheckpointEntry* newest) {
  std::string passed_over;
  for (const CheckpointEntry& entry : entries) {
    if (entry.kind == CheckpointKind::unusable &&
        (newest == nullptr || entry.number > newest->number)) {
      passed_over += format("\n  {}: {}", entry.name, entry.complaint);
    }
  }
  if (passed_over.empty()) return;
  checkpoints.world.logger().log(
      LogLevel::warning,
      "checkpoint",
      format(
          "the newest complete checkpoint in {} is {}; passed over:{}",
          base.string(),
          newest == nullptr ? "none" : newest->name,
          passed_over));
}

// Returns the newest complete checkpoint of the project, after warning about
// newer ones that are unusable, by name; empty if there is none. Skips the
// names in `damaged`. Throws ConfigError if the project does not name its
// checkpoints.
std::filesystem::path find_newest_checkpoint(
    const CheckpointState& checkpoints,
    const std::set<std::string>& damaged = {}) {
  const ProjectConfiguration& project = checkpoints.project;
  if (!project.automatic_checkpoint_naming || project.project_dir.empty()) {
    throw ConfigError(
        "[checkpoint] load_state() needs a directory, or "
        "ProjectConfiguration::automatic_checkpoint_naming and a project_dir");
  }
  const std::filesystem::path base =
      std::filesystem::path(project.project_dir) / kCheckpointsDirectory;
  if (std::filesystem::is_directory(base)) {
    restore_put_aside(*checkpoints.disk, base);
  }
  auto entries = list_checkpoints(base);
  std::erase_if(entries, [&](const CheckpointEntry& entry) {
    return damaged.contains(entry.name);
  });
  const CheckpointEntry* const newest = newest_of(entries);
  // Unusable checkpoints were reported by the first of several attempts.
  if (damaged.empty()) warn_passed_over(checkpoints, base, entries, newest);
  return newest == nullptr ? std::filesystem::path() : base / newest->name;
}

// Throws CheckpointError unless `input_dir` is a directory.
void require_directory(
    const CheckpointState& checkpoints,
    const std::filesystem::path& input_dir) {
  const std::filesystem::path parent =
      std::filesystem::absolute(input_dir).parent_path();
  if (!std::filesystem::exists(input_dir) &&
      std::filesystem::is_directory(parent)) {
    restore_put_aside(*checkpoints.disk, parent);
  }
  if (std::filesystem::is_directory(input_dir)) return;
  throw CheckpointError(format(
      "[checkpoint] {} is not a directory; pass the directory of a checkpoint "
      "to load_state()",
      input_dir.string()));
}

template <class Body>
std::string failure_of(Body&& body) {
  try {
    std::forward<Body>(body)();
    return {};
  } catch (const std::exception& error) {
    return *error.what() == '\0' ? "unknown" : error.what();
  }
}

// Chooses on each node if each has its own disk, otherwise on rank 0 for all
// ranks.
template <class Choose>
std::filesystem::path agree_on_path(
    CheckpointState& checkpoints,
    const std::string& call,
    const Choose& choose) {
  std::filesystem::path path;
  const std::string failure = failure_of([&] {
    if (checkpoints.chooses()) path = choose();
  });
  checkpoints.agreement.require_success(failure, call, "");
  const std::filesystem::path decided =
      checkpoints.agreement.decide(path.string(), call);
  if (!checkpoints.is_per_node()) return decided;
  const bool is_same = path.filename() == decided.filename();
  checkpoints.agreement.require_success(
      is_same
          ? ""
          : format(
                "[checkpoint] this node has \"{}\", but rank 0's has \"{}\"; "
                "pass a directory to load_state() that every node has",
                path.string(),
                decided.string()),
      call,
      "");
  return path;
}

// A rank's own state is only usable if the same number of ranks saved.
void drop_other_ranks_state(const World& world, CheckpointSource& source) {
  if (source.num_processes == world.size()) return;
  source.rank_state.reset();
  world.logger().log_once_per_world(
      LogLevel::info,
      "checkpoint",
      format(
          "{} was saved by {} processes, but is loaded by {}; random states "
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

// Throws DamagedCheckpoint on all ranks if a file is damaged for any of them.
void require_undamaged(
    RankAgreement& agreement,
    const std::string& damage,
    std::string_view what) {
  const std::string all = agreement.gather_failures(damage, "load_state");
  if (!all.empty()) throw DamagedCheckpoint(format("{}{}", what, all));
}

// Splits the files that hooks added among the ranks that share them, so that
// each is hashed once.
void verify_files_of_hooks(
    const CheckpointState& checkpoints,
    const std::filesystem::path& path) {
  if (!std::filesystem::exists(path / kManifestName)) return;
  const CheckpointReader reader(path);
  const std::vector<std::string> files = reader.files_of_hooks();
  std::vector<std::string> mine;
  const std::size_t num_ranks = checkpoints.writers.size();
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (checkpoints.writers[i % num_ranks] == checkpoints.world.rank()) {
      mine.push_back(files[i]);
    }
  }
  reader.verify(mine);
}

// One call of load_state() or resume().
class Loading {
 public:
  Loading(
      CheckpointState& checkpoints,
      const LoadStateOptions& options,
      const std::vector<std::shared_ptr<torch::nn::Module>>& models,
      const ListComponents& components)
      : checkpoints_(checkpoints),
        agreement_(checkpoints.agreement),
        options_(options),
        rules_{options.strict, options.skip, options.allow_missing},
        models_(models),
        components_(components) {}

  // Returns which models received weights.
  [[nodiscard]] std::vector<bool> load(const std::filesystem::path& path) const;
  // Loads the newest checkpoint that is complete and undamaged. Returns nothing
  // if there is none.
  [[nodiscard]] std::optional<std::vector<bool>> load_newest() const;

 private:
  [[nodiscard]] CheckpointSource open(const std::filesystem::path& path) const;
  void show_reads_of(const CheckpointSource& source) const;
  void run_hooks(LoadHookContext& context) const;
  // Leaves out models that the checkpoint lacks, which only strict = false
  // allows.
  void leave_out_absent_models(
      const CheckpointSource& source,
      std::vector<bool>& with_weights) const;

  CheckpointState& checkpoints_;
  RankAgreement& agreement_;
  const LoadStateOptions& options_;
  MatchRules rules_;
  const std::vector<std::shared_ptr<torch::nn::Module>>& models_;
  const ListComponents& components_;
};

CheckpointSource Loading::open(const std::filesystem::path& path) const {
  CheckpointSource source;
  const std::string damage = failure_of([&] {
    source = open_checkpoint(path, checkpoints_.world.rank(), options_.verify);
    if (checkpoints_.world.local_size() > 1) {
      for (const auto& [name, tensors] : source.sections) share_files(tensors);
    }
    show_reads_of(source);
    if (options_.verify && !checkpoints_.load_hooks.empty()) {
      verify_files_of_hooks(checkpoints_, path);
    }
  });
  require_undamaged(agreement_, damage, "");
  return source;
}

// It is not known yet how much of sharded tensors several ranks read.
void Loading::show_reads_of(const CheckpointSource& source) const {
  std::optional<std::uint64_t> num_bytes;
  if (checkpoints_.world.size() == 1) {
    num_bytes = 0;
    for (const auto& [name, tensors] : source.sections)
      *num_bytes += num_stored_bytes(tensors);
  }
  const auto progress = checkpoints_.show_progress("load_state", num_bytes);
  for (const auto& [name, tensors] : source.sections)
    show_reads(tensors, progress);
}

void Loading::run_hooks(LoadHookContext& context) const {
  for (const auto& [id, hook] : checkpoints_.load_hooks) hook(context);
}

void Loading::leave_out_absent_models(
    const CheckpointSource& source,
    std::vector<bool>& with_weights) const {
  if (rules_.strict) return;
  for (std::size_t i = 0; i < with_weights.size(); ++i) {
    const std::string name = numbered("model", i);
    if (!with_weights[i] || source.sections.contains(name)) continue;
    with_weights[i] = false;
    checkpoints_.world.logger().log_once_per_world(
        LogLevel::warning,
        "checkpoint",
        format(
            "{} has no {}, which keeps its weights",
            source.directory.string(),
            name));
  }
}

std::vector<bool> Loading::load(const std::filesystem::path& path) const {
  CheckpointSource source = open(path);
  LoadHookContext context{
      models_, std::vector<bool>(models_.size(), true), path};
  ComponentList list;
  std::string failure = failure_of([&] {
    run_hooks(context);
    leave_out_absent_models(source, context.load_weights);
    drop_other_ranks_state(checkpoints_.world, source);
    list = components_(context.load_weights);
    require_no_complaints(
        check_components(list, source, rules_), path, options_.strict);
  });
  agreement_.require_success(failure, "load_state", "");
  std::string damage;
  failure = failure_of([&] {
    try {
      load_components(list, source, rules_);
    } catch (const DamagedCheckpoint& error) {
      damage = error.what();
    }
  });
  constexpr std::string_view kHalfWay =
      "[checkpoint] loading failed half-way; prepared objects "
      "have old and new states:\n";
  require_undamaged(agreement_, damage, kHalfWay);
  agreement_.require_success(failure, "load_state", std::string(kHalfWay));
  return context.load_weights;
}

std::optional<std::vector<bool>> Loading::load_newest() const {
  std::set<std::string> damaged;
  std::string complaints;
  while (true) {
    const std::filesystem::path path =
        agree_on_path(checkpoints_, "load_state", [&] {
          return find_newest_checkpoint(checkpoints_, damaged);
        });
    if (path.empty() && damaged.empty()) return std::nullopt;
    if (path.empty()) {
      throw CheckpointError(format(
          "[checkpoint] every checkpoint in {}/{} is damaged; prepared objects "
          "may have old and new states:\n{}",
          checkpoints_.project.project_dir,
          kCheckpointsDirectory,
          complaints));
    }
    try {
      return load(path);
    } catch (const DamagedCheckpoint& error) {
      // An older checkpoint replaces everything that this one changed.
      damaged.insert(path.filename().string());
      complaints += format("{}\n", error.what());
      checkpoints_.world.logger().log_once_per_world(
          LogLevel::warning,
          "checkpoint",
          format(
              "{} is skipped, and the one before it is loaded: {}",
              path.string(),
              error.what()));
    }
  }
}

}  // namespace

std::vector<bool> load_checkpoint(
    CheckpointState& checkpoints,
    const std::filesystem::path& input_dir,
    const LoadStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components) {
  checkpoints.agreement.require_same_call("load_state", input_dir.string());
  checkpoints.saver.wait();
  const Loading loading{checkpoints, options, models, components};
  if (!input_dir.empty()) {
    return loading.load(agree_on_path(checkpoints, "load_state", [&] {
      const std::filesystem::path directory = checkpoints.machine_directory
          ? *checkpoints.machine_directory / input_dir.filename()
          : input_dir;
      require_directory(checkpoints, directory);
      return directory;
    }));
  }
  auto loaded = loading.load_newest();
  if (loaded) return *std::move(loaded);
  throw CheckpointError(format(
      "[checkpoint] there is no complete checkpoint in {}/{}",
      checkpoints.project.project_dir,
      kCheckpointsDirectory));
}

std::optional<std::vector<bool>> resume_checkpoint(
    CheckpointState& checkpoints,
    const LoadStateOptions& options,
    const std::vector<std::shared_ptr<torch::nn::Module>>& models,
    const ListComponents& components) {
  checkpoints.agreement.require_same_call("resume", "");
  checkpoints.saver.wait();
  return Loading{checkpoints, options, models, components}.load_newest();
}

std::optional<std::filesystem::path> agree_on_newest(
    CheckpointState& checkpoints) {
  checkpoints.agreement.require_same_call("checkpoints().latest", "");
  checkpoints.saver.wait();
  const std::filesystem::path newest =
      agree_on_path(checkpoints, "checkpoints().latest", [&] {
        return find_newest_checkpoint(checkpoints);
      });
  if (newest.empty()) return std::nullopt;
  return newest;
}

}  // namespace accelerate::detail
