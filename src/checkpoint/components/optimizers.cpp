#include "checkpoint/components/optimizers.h"

#include <algorithm>
#include <map>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/tensors/state_json.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/tensors/tensor_tree.h"

namespace accelerate::detail {

namespace {

using NamedList = std::vector<std::pair<std::string, at::Tensor>>;

bool may_be_missing(const MatchRules& rules, const std::string& name) {
  return !rules.strict || matches_any(rules.skip, name) ||
      matches_any(rules.allow_missing, name);
}

// The state of the full model's parameters, from the states of the ranks in
// `group`: pipeline stages have different parameters, and ranks along `expert`
// step on different experts.
OptimizerState over_ranks(const OptimizerState& mine, const Group& group) {
  if (group.size() == 1) return mine;
  NamedTensors none;
  const auto texts =
      group.all_gather_bytes(to_json(to_state_dict(mine), "", none).dump());
  OptimizerState whole;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    OptimizerState stage = optimizer_state_from(from_json(
        nlohmann::json::parse(texts[i]),
        "the state of another rank's optimizer",
        [](const std::string&) { return at::Tensor(); }));
    if (i == 0) {
      whole = std::move(stage);
      continue;
    }
    whole.parameters.merge(stage.parameters);
    for (std::size_t g = 0; g < stage.groups.size(); ++g) {
      if (g == whole.groups.size()) {
        whole.groups.push_back(std::move(stage.groups[g]));
        continue;
      }
      auto& names = whole.groups[g].parameters;
      for (std::string& name : stage.groups[g].parameters) {
        if (std::ranges::find(names, name) == names.end())
          names.push_back(std::move(name));
      }
    }
  }
  return whole;
}

void leave_out_other_stages(
    OptimizerState& state,
    const ParameterNames& names) {
  std::erase_if(state.parameters, [&](const auto& entry) {
    return names.is_elsewhere(entry.first);
  });
  for (auto& group : state.groups) {
    std::erase_if(group.parameters, [&](const std::string& name) {
      return names.is_elsewhere(name);
    });
  }
}

// The destinations of this rank's shards of an optimizer's tensors: the memory
// of present tensors if they fit, otherwise new memory.
class StateTensors {
 public:
  StateTensors(
      std::string section,
      const StoredTensors& saved,
      const OptimizerState& present,
      std::map<std::string, MeshLayout> layouts,
      at::Device device)
      : section_(std::move(section)),
        saved_(saved),
        layouts_(std::move(layouts)),
        device_(device) {
    NamedList tensors;
    for (const auto& [name, values] : present.parameters) {
      static_cast<void>(extract_tensors(values, name, tensors));
    }
    present_.insert(tensors.begin(), tensors.end());
  }

  // Adds the tensors that `tree` refers to: the state of `parameter` or, if
  // that is empty, state that belongs to no parameter.
  void add(const StateDict& tree, const std::string& parameter) {
    for (const std::string& name : tensor_names(tree)) {
      destinations_.push_back(destination(parameter, name));
      made_.emplace(name, destinations_.back().tensor);
    }
  }
  [[nodiscard]] std::vector<Destination>& destinations() {
    return destinations_;
  }
  [[nodiscard]] const at::Tensor& at(const std::string& name) const {
    return made_.at(name);
  }

 private:
  [[nodiscard]] Destination destination(
      const std::string& parameter,
      const std::string& name) const {
    const auto found = saved_.find(name);
    if (found == saved_.end()) {
      throw CheckpointError(
          format("[checkpoint] {} has no tensor \"{}\"", section_, name));
    }
    const StoredTensor& tensor = found->second;
    const auto dtype = torch_dtype(tensor.dtype);
    if (!dtype) {
      throw CheckpointError(
          format("[checkpoint] \"{}\" has a dtype that LibTorch lacks", name));
    }
    const std::vector<std::int64_t> shape =
        torch_shape(tensor.dtype, tensor.shape);
    const auto sharded = layouts_.find(parameter);
    const MeshLayout place = sharded != layouts_.end() &&
            sharded->second.layout.global_shape == shape
        ? sharded->second
        : MeshLayout{Layout::unsharded(shape), nullptr, device_, nullptr};
    const Layout& layout = place.layout;
    const auto present = present_.find(name);
    if (present != present_.end() && present->second.defined() &&
        present->second.sizes() == at::IntArrayRef(layout.extent) &&
        present->second.scalar_type() == *dtype) {
      return {name, present->second, layout};
    }
    const auto options = at::TensorOptions().dtype(*dtype).device(place.device);
    if (place.make_state)
      return {name, place.make_state(layout.extent, options), layout};
    const at::Tensor made = at::empty(layout.extent, options);
    prefer_huge_pages(made);
    return {name, made, layout};
  }

  std::string section_;
  const StoredTensors& saved_;
  std::map<std::string, MeshLayout> layouts_;
  at::Device device_;
  std::map<std::string, at::Tensor> present_;
  std::vector<Destination> destinations_;
  std::map<std::string, at::Tensor> made_;
};

// The parameter to which a master weight with this name belongs.
std::string parameter_of(const std::string& master) {
  return master.substr(0, master.rfind('/'));
}

std::vector<Destination> saved_masters(
    const std::vector<std::pair<std::string, at::Tensor>>& masters,
    const StoredTensors& saved) {
  std::vector<Destination> destinations;
  for (const auto& [name, tensor] : masters) {
    if (!saved.contains(name)) continue;
    destinations.push_back(
        {name, tensor, Layout::unsharded(tensor.sizes().vec())});
  }
  return destinations;
}

}  // namespace

OptimizerComponent::OptimizerComponent(
    std::vector<torch::optim::Optimizer*> optimizers,
    ParameterNames names,
    WriterRule writes,
    Mesh mesh,
    at::Device device,
    OptimizerParts loads)
    : optimizers_(std::move(optimizers)),
      names_(std::move(names)),
      writes_(writes),
      mesh_(std::move(mesh)),
      device_(device),
      loads_(loads) {}

void OptimizerComponent::collect(CheckpointContents& contents) const {
  std::vector<StateDict> trees;
  for (const torch::optim::Optimizer* optimizer : optimizers_) {
    trees.push_back(
        collect_one(*optimizer, numbered("optimizer", trees.size()), contents));
  }
  contents.state.set("optimizers", std::move(trees));
}

StateDict OptimizerComponent::collect_one(
    const torch::optim::Optimizer& optimizer,
    std::string section_name,
    CheckpointContents& contents) const {
  Section section{std::move(section_name), {}};
  section.is_stage = mesh_.degree(Axis::pipeline) > 1;
  const auto add_full = [&](const NamedList& tensors, bool is_saved_there) {
    for (const auto& [key, tensor] : tensors) {
      const Layout full = Layout::unsharded(tensor.sizes().vec());
      section.entries.push_back(
          {key, tensor, full, writes_(full, mesh_, is_saved_there)});
    }
  };
  const auto layouts = names_.sharded_layouts();
  const OptimizerState state =
      read_optimizer_state(optimizer, names_.of(optimizer));
  OptimizerState bare = state;
  for (auto& [name, values] : bare.parameters) {
    NamedList tensors;
    values = extract_tensors(values, name, tensors);
    const auto layout = layouts.find(name);
    const bool is_saved_there = names_.is_saved_there(name);
    for (auto& [key, tensor] : tensors) {
      const bool is_box = layout != layouts.end() &&
          tensor.sizes() == at::IntArrayRef(layout->second.layout.extent);
      if (!is_box) {
        add_full({{key, tensor}}, is_saved_there);
        continue;
      }
      const MeshLayout& box = layout->second;
      section.entries.push_back(
          {key,
           tensor,
           box.layout,
           writes_(box.layout, *box.mesh, is_saved_there)});
    }
  }
  for (const auto& [key, tensor] : names_.masters_of(optimizer)) {
    add_full({{key, tensor}}, names_.is_saved_there(parameter_of(key)));
  }
  NamedList others;
  bare.others = {};
  if (!state.others.empty()) {
    bare.others = extract_tensors(state.others, "archive", others);
  }
  add_full(others, /*is_saved_there=*/false);
  contents.sections.push_back(std::move(section));
  return to_state_dict(
      over_ranks(bare, mesh_.group({Axis::pipeline, Axis::expert})));
}

std::vector<std::string> OptimizerComponent::check(
    const CheckpointSource& source,
    const MatchRules& rules) {
  std::vector<std::string> complaints;
  to_load_.clear();
  if (loads_ == OptimizerParts::master_weights) return complaints;
  const auto trees = source.state.get<std::vector<StateDict>>("optimizers");
  if (trees.size() != optimizers_.size() && rules.strict) {
    complaints.push_back(format(
        "the checkpoint has {} optimizers, but {} are prepared{}",
        trees.size(),
        optimizers_.size(),
        trees.empty() ? " (no_save_optim saves none, no_load_optim or strict = "
                        "false keeps those that are prepared)"
                      : ""));
  }
  for (std::size_t i = 0; i < std::min(trees.size(), optimizers_.size()); ++i) {
    OptimizerToLoad to_load{
        numbered("optimizer", i),
        optimizers_[i],
        names_.of(*optimizers_[i]),
        optimizer_state_from(trees[i]),
        masters_to_load(*optimizers_[i], rules)};
    if (source.is_python) {
      try {
        to_load.state = adapt_python_state(
            *to_load.optimizer, to_load.state, to_load.name_of);
      } catch (const CheckpointError& error) {
        complaints.emplace_back(error.what());
        continue;
      }
    }
    leave_out_other_stages(to_load.state, names_);
    for (const std::string& complaint : optimizer_complaints(
             *to_load.optimizer,
             to_load.state,
             to_load.name_of,
             [&](const std::string& name) {
               return may_be_missing(rules, name);
             })) {
      complaints.push_back(format("{}: {}", to_load.section, complaint));
    }
    to_load_.push_back(std::move(to_load));
  }
  return complaints;
}

void OptimizerComponent::load(
    const CheckpointSource& source,
    const MatchRules& rules) {
  for (OptimizerToLoad& to_load : to_load_) load_one(to_load, source, rules);
  // Without `strict`, the checkpoint may have fewer optimizers.
  for (std::size_t i = to_load_.size(); i < optimizers_.size(); ++i)
    load_masters(i, source, rules);
}

void OptimizerComponent::load_masters(
    std::size_t index,
    const CheckpointSource& source,
    const MatchRules& rules) const {
  static const StoredTensors kNone;
  const torch::optim::Optimizer& optimizer = *optimizers_[index];
  const auto section = source.sections.find(numbered("optimizer", index));
  const StoredTensors& saved =
      section == source.sections.end() ? kNone : section->second;
  const MasterList masters = masters_to_load(optimizer, rules);
  read_into(saved, saved_masters(masters, saved));
  fill_masters(optimizer, masters, saved);
}

OptimizerComponent::MasterList OptimizerComponent::masters_to_load(
    const torch::optim::Optimizer& optimizer,
    const MatchRules& rules) const {
  MasterList masters = names_.masters_of(optimizer);
  std::erase_if(masters, [&](const auto& master) {
    return matches_any(rules.skip, parameter_of(master.first));
  });
  return masters;
}

void OptimizerComponent::load_one(
    OptimizerToLoad& to_load,
    const CheckpointSource& source,
    const MatchRules& rules) const {
  static const StoredTensors kNone;
  const auto section = source.sections.find(to_load.section);
  const StoredTensors& saved =
      section == source.sections.end() ? kNone : section->second;
  const OptimizerState present =
      read_optimizer_state(*to_load.optimizer, to_load.name_of);
  StateTensors tensors(
      to_load.section, saved, present, names_.sharded_layouts(), device_);
  OptimizerState& state = to_load.state;
  std::erase_if(state.parameters, [&](const auto& entry) {
    return matches_any(rules.skip, entry.first);
  });
  for (const auto& [name, values] : state.parameters) {
    tensors.add(values, name);
  }
  tensors.add(state.others, "");
  for (Destination& master : saved_masters(to_load.masters, saved))
    tensors.destinations().push_back(std::move(master));
  read_into(saved, tensors.destinations());
  const auto tensor_of = [&](const std::string& name) {
    return tensors.at(name);
  };
  for (auto& [name, values] : state.parameters) {
    values = insert_tensors(values, tensor_of);
  }
  state.others = insert_tensors(state.others, tensor_of);
  // Skipped parameters keep their current state.
  for (const auto& [name, values] : present.parameters) {
    const bool is_kept = matches_any(rules.skip, name) ||
        (may_be_missing(rules, name) && !state.parameters.contains(name));
    if (is_kept) state.parameters.insert_or_assign(name, values);
  }
  write_optimizer_state(*to_load.optimizer, state, to_load.name_of);
  fill_masters(*to_load.optimizer, to_load.masters, saved);
}

void OptimizerComponent::fill_masters(
    const torch::optim::Optimizer& optimizer,
    const MasterList& masters,
    const StoredTensors& saved) const {
  const at::NoGradGuard no_grad;
  const NameOfParameter name_of = names_.of(optimizer);
  for (const auto& [name, tensor] : masters) {
    if (saved.contains(name)) continue;
    const std::string parameter = parameter_of(name);
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& local : group.params()) {
        const at::Tensor* const in_model = names_.tensor_of(local);
        if (in_model != nullptr && name_of(local) == parameter) {
          tensor.copy_(*in_model);
        }
      }
    }
  }
}

}  // namespace accelerate::detail
