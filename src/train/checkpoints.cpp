#include "train/checkpoints.h"

#include <exception>
#include <numeric>
#include <unordered_map>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "train/session.h"

namespace accelerate::detail {

namespace {

// Parameters of the first model are called as the model calls them.
std::string qualified(std::size_t model, const std::string& name) {
  return model == 0 ? name : concat("model_", model, "/", name);
}

struct Found {
  std::size_t model = 0;
  const Parameter* row = nullptr;
};

Found find_row(const Session& session, const at::Tensor& parameter) {
  for (std::size_t i = 0; i < session.models.size(); ++i) {
    const ParameterTable& table = session.models[i]->table;
    const Parameter* row = table.find_local(parameter);
    if (row == nullptr) row = table.find(parameter);
    if (row != nullptr) return {i, row};
  }
  return {};
}

}  // namespace

Checkpoints::~Checkpoints() {
  if (saves && std::uncaught_exceptions() > 0) saves->cancel();
}

void open_meetings(Session& session) {
  Checkpoints& checkpoints = *session.checkpoints;
  if (checkpoints.calls) return;
  const World& world = session.world;
  std::vector<int> everybody(static_cast<std::size_t>(world.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  checkpoints.writers = everybody;
  if (checkpoints.project.save_on_each_node && world.size() > 1) {
    checkpoints.writers.clear();
    // Ranks of a machine follow one another.
    const int first = world.rank() - world.local_rank();
    for (int i = 0; i < world.local_size(); ++i) {
      checkpoints.writers.push_back(first + i);
    }
  }
  checkpoints.calls.emplace(world, "checkpoint calls", everybody);
  if (checkpoints.watch) {
    checkpoints.calls->while_waiting(
        [watch = checkpoints.watch.get()](const std::string& call) {
          watch->ask(call + "()");
        });
  }
  checkpoints.saves.emplace(
      world,
      concat("checkpoint saves of ", checkpoints.writers.front()),
      checkpoints.writers);
}

void require_same_call(
    Session& session,
    const std::string& call,
    const std::string& arguments) {
  open_meetings(session);
  const std::string mine =
      arguments.empty() ? call : concat(call, " ", arguments);
  const std::vector<std::string> all =
      session.checkpoints->calls->exchange(mine, call);
  std::vector<std::string> lines;
  bool are_equal = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    are_equal = are_equal && all[i] == mine;
    lines.push_back(concat("rank ", i, ": ", all[i]));
  }
  if (are_equal) return;
  throw DistributedError(concat(
      "[checkpoint] the ranks made different calls; all must make the same:\n "
      " ",
      join(lines, "\n  ")));
}

void require_success(
    Session& session,
    const std::string& failure,
    const std::string& call,
    const std::string& what) {
  std::vector<std::string> lines;
  const auto said = session.checkpoints->calls->exchange(failure, call);
  for (std::size_t i = 0; i < said.size(); ++i) {
    // Alike on all ranks, mostly.
    if (said[i].empty() || (i > 0 && said[i] == said[0])) continue;
    lines.push_back(
        said.size() == 1 ? said[i] : concat("rank ", i, ": ", said[i]));
  }
  if (lines.empty()) return;
  throw CheckpointError(concat(what, join(lines, "\n")));
}

const std::vector<std::shared_ptr<LoaderSlot>>& live_loaders(
    const Session& session) {
  auto& loaders = session.checkpoints->loaders;
  while (!loaders.empty() && !loaders.back()->state_dict) loaders.pop_back();
  return loaders;
}

bool writes(const Session& session, const Mesh& mesh, const Layout& layout) {
  if (!session.checkpoints->project.save_on_each_node) {
    return is_writer(layout, mesh);
  }
  if (!layout.is_whole()) {
    throw ConfigError(
        "[checkpoint] save_on_each_node needs every machine to have all of the "
        "model, but it is split over machines; unset it and save to a file "
        "system that all see");
  }
  return session.checkpoints->writers.front() == session.world.rank();
}

Part model_part(
    const Session& session,
    const PreparedModel& model,
    std::size_t i) {
  Part part{numbered("model", i), {}};
  std::unordered_map<const void*, std::string> known;
  for (const Parameter& row : model.table.rows()) {
    known.emplace(row.tensor.unsafeGetTensorImpl(), row.name);
    part.entries.push_back(
        {row.name,
         row.layout.is_whole() ? row.tensor : row.local,
         row.layout,
         writes(session, model.mesh, row.layout)});
  }
  for (const auto& item : model.module->named_parameters()) {
    if (!item.value().defined()) continue;
    const auto found = known.find(item.value().unsafeGetTensorImpl());
    if (found != known.end() && found->second != item.key()) {
      part.aliases.emplace(item.key(), found->second);
    }
  }
  for (const auto& item : model.module->named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined()) continue;
    const auto [place, is_new] =
        known.emplace(buffer.unsafeGetTensorImpl(), item.key());
    if (!is_new) {
      part.aliases.emplace(item.key(), place->second);
      continue;
    }
    const Layout whole = Layout::whole(buffer.sizes().vec());
    part.entries.push_back(
        {item.key(), buffer, whole, writes(session, model.mesh, whole)});
  }
  return part;
}

NameOfParameter parameter_names(
    const Session& session,
    const PreparedOptimizer& optimizer) {
  auto names = std::make_shared<std::unordered_map<const void*, std::string>>();
  const auto& groups = optimizer.inner->param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      const Found found = find_row(session, parameter);
      names->emplace(
          parameter.unsafeGetTensorImpl(),
          found.row != nullptr ? qualified(found.model, found.row->name)
                               : concat("group_", g, "/", i));
    }
  }
  return [names](const at::Tensor& parameter) {
    return names->at(parameter.unsafeGetTensorImpl());
  };
}

std::map<std::string, SplitLayout> split_layouts(const Session& session) {
  std::map<std::string, SplitLayout> layouts;
  for (std::size_t i = 0; i < session.models.size(); ++i) {
    const PreparedModel& model = *session.models[i];
    for (const Parameter& row : model.table.rows()) {
      if (!row.layout.is_whole()) {
        layouts.emplace(
            qualified(i, row.name),
            SplitLayout{row.layout, &model.mesh, row.local.device()});
      }
    }
  }
  return layouts;
}

std::vector<std::pair<std::string, at::Tensor>> masters_of(
    const Session& session,
    const PreparedOptimizer& optimizer) {
  std::vector<std::pair<std::string, at::Tensor>> masters;
  for (const auto& group : optimizer.inner->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const Found found = find_row(session, parameter);
      if (found.row != nullptr && found.row->layout.is_whole() &&
          !found.row->local.is_same(found.row->tensor)) {
        masters.emplace_back(
            concat(qualified(found.model, found.row->name), "/master"),
            found.row->local);
      }
    }
  }
  return masters;
}

}  // namespace accelerate::detail
