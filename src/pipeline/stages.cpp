#include "pipeline/stages.h"

#include <algorithm>
#include <map>
#include <typeindex>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>
#include <accelerate/exported_model.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

bool is_number(const std::string& text) {
  return !text.empty() &&
      text.find_first_not_of("0123456789") == std::string::npos;
}

// Calls `visit(name, tensor, is_buffer)` for every tensor of a layer.
template <class Visit>
void visit_layer(const PipelineLayer& layer, Visit&& visit) {
  for (const auto& [name, module] : layer.modules) {
    for (const auto& item : module->named_parameters())
      if (item.value().defined())
        visit(name + "." + item.key(), item.value(), false);
    for (const auto& item : module->named_buffers())
      if (item.value().defined())
        visit(name + "." + item.key(), item.value(), true);
  }
  for (const auto& [name, tensor] : layer.parameters)
    visit(name, tensor, false);
  for (const auto& [name, tensor] : layer.buffers) visit(name, tensor, true);
}

// The class of a node with a child of this name, as seen by policies that
// choose modules: children of lists have numbers for names.
std::string class_of_node(const std::string& child) {
  return is_number(child) ? "torch::nn::ModuleListImpl" : "PipelineStage";
}

// Builds a tree of modules and tensors from dotted names.
class StageTree {
 public:
  explicit StageTree(std::shared_ptr<torch::nn::Module> root) {
    nodes_.emplace("", std::move(root));
  }

  void add(
      const std::string& name,
      const std::shared_ptr<torch::nn::Module>& module) {
    const auto [place, is_new] = modules_.emplace(name, module);
    if (!is_new) {
      if (place->second == module) return;
      throw ConfigError(format(
          "[pipeline] each layer must have its own name, but two modules of "
          "the model are called \"{}\"",
          name));
    }
    const auto [parent, last] = place_of(name);
    parent->register_module(last, module);
  }

  void add(
      const std::string& name,
      const at::Tensor& tensor,
      bool is_buffer = false) {
    const auto [place, is_new] = tensors_.emplace(name, tensor);
    if (!is_new) {
      if (place->second.is_same(tensor)) return;
      throw ConfigError(format(
          "[pipeline] each parameter must have its own name, but two are "
          "called \"{}\"",
          name));
    }
    const auto [parent, last] = place_of(name);
    if (is_buffer) {
      parent->register_buffer(last, tensor);
    } else {
      parent->register_parameter(last, tensor, tensor.requires_grad());
    }
  }

 private:
  // The node above `name`, made if needed, and the last part of the name.
  std::pair<std::shared_ptr<torch::nn::Module>, std::string> place_of(
      const std::string& name) {
    const auto dot = name.rfind('.');
    if (dot == std::string::npos) return {nodes_.at(""), name};
    std::string last = name.substr(dot + 1);
    return {node(name.substr(0, dot), last), std::move(last)};
  }

  std::shared_ptr<torch::nn::Module> node(
      const std::string& name,
      const std::string& child) {
    const auto found = nodes_.find(name);
    if (found != nodes_.end()) return found->second;
    if (modules_.contains(name)) {
      throw ConfigError(format(
          "[pipeline] \"{}\" is a layer, but names of other layers begin with "
          "it; rename one of them",
          name));
    }
    const auto made = std::make_shared<torch::nn::Module>(class_of_node(child));
    const auto [parent, last] = place_of(name);
    parent->register_module(last, made);
    nodes_.emplace(name, made);
    return made;
  }

  std::map<std::string, std::shared_ptr<torch::nn::Module>> nodes_;
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules_;
  std::map<std::string, at::Tensor> tensors_;
};

// The stages that use a tensor, and its name in the whole model.
struct TensorUse {
  std::string name;
  at::Tensor tensor;
  bool is_buffer = false;
  std::vector<int> ranks;
};

std::vector<TensorUse> uses_of(
    const std::vector<PipelineLayer>& layers,
    const std::vector<int>& rank_of_layer) {
  std::vector<TensorUse> uses;
  std::unordered_map<const void*, std::size_t> known;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    visit_layer(
        layers[i],
        [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
          const auto [place, is_new] =
              known.emplace(tensor.unsafeGetTensorImpl(), uses.size());
          if (is_new) uses.push_back({name, tensor, is_buffer, {}});
          auto& ranks = uses[place->second].ranks;
          const int rank = rank_of_layer[i];
          if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end())
            ranks.push_back(rank);
        });
  }
  return uses;
}

bool has_rank(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

std::vector<double> parameter_bytes(const std::vector<PipelineLayer>& layers) {
  std::vector<double> bytes(layers.size(), 0);
  std::unordered_set<const void*> seen;
  double total = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    visit_layer(
        layers[i],
        [&](const std::string&, const at::Tensor& tensor, bool is_buffer) {
          if (is_buffer || !seen.insert(tensor.unsafeGetTensorImpl()).second)
            return;
          bytes[i] += static_cast<double>(tensor.numel()) *
              static_cast<double>(tensor.element_size());
        });
    total += bytes[i];
  }
  if (total == 0) bytes.assign(layers.size(), 1);
  return bytes;
}

namespace {

// Indices of the layers of the most common class.
std::vector<std::size_t> repeated_layers(
    const std::vector<PipelineLayer>& layers) {
  std::map<std::pair<std::type_index, std::string>, std::vector<std::size_t>>
      places;
  std::vector<std::size_t> most;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].modules.size() != 1) continue;
    const torch::nn::Module& module = *layers[i].modules.front().second;
    // The name of an exported program's module is its class in Python.
    const bool is_exported = typeid(module) == typeid(ExportedModuleImpl);
    auto& own =
        places[{typeid(module), is_exported ? module.name() : std::string()}];
    own.push_back(i);
    if (own.size() > most.size()) most = own;
  }
  return most;
}

}  // namespace

std::size_t num_repeated_layers(const std::vector<PipelineLayer>& layers) {
  return repeated_layers(layers).size();
}

std::vector<std::size_t> begins_with_last_rank(
    const std::vector<PipelineLayer>& layers,
    const PipelineStagePlaces& places,
    int of_last_rank) {
  const std::vector<std::size_t> repeated = repeated_layers(layers);
  const auto count = static_cast<int>(repeated.size());
  const int others = places.num_stages() - places.num_chunks;
  const int rest = count - of_last_rank;
  // A last stage without repeated layers has the layers that come after them.
  const bool has_last = of_last_rank > 0 ||
      (places.num_chunks == 1 && count > 0 &&
       repeated.back() + 1 < layers.size());
  if (!has_last || others == 0 || rest < others || rest % others != 0 ||
      of_last_rank % places.num_chunks != 0) {
    throw ConfigError(format(
        "[pipeline] decoder_last_pipeline_num_layers is {}, but the model has "
        "{} layers of one class, for {} ranks with {} stages each; stages of "
        "the last rank must be equal, and so must those of the others, of at "
        "least one layer each; set another number, or "
        "PipelineOptions::split_points",
        of_last_rank,
        count,
        places.num_ranks,
        places.num_chunks));
  }
  std::vector<std::size_t> begins{0};
  int before = 0;
  for (int stage = 0; stage + 1 < places.num_stages(); ++stage) {
    before += places.rank_of(stage) == places.last_rank()
        ? of_last_rank / places.num_chunks
        : rest / others;
    const auto next = static_cast<std::size_t>(before);
    begins.push_back(
        next < repeated.size() ? repeated[next] : repeated.back() + 1);
  }
  return begins;
}

bool ProgramStageModule::is_embedding(const at::Tensor& parameter) const {
  return std::any_of(
      programs_.begin(), programs_.end(), [&](const auto& program) {
        return program->is_embedding(parameter);
      });
}

ParallelizePlan ProgramStageModule::own_plan() const {
  return programs_.front()->own_plan();
}

std::vector<at::Tensor> ProgramStageModule::divide(
    const std::vector<DividedParameter>& parameters,
    int rank) {
  std::vector<at::Tensor> summed;
  try {
    for (const auto& program : programs_) {
      const auto own = program->divide(parameters, rank);
      summed.insert(summed.end(), own.begin(), own.end());
    }
  } catch (...) {
    set_full(true);
    throw;
  }
  return summed;
}

void ProgramStageModule::set_full(bool is_full) {
  for (const auto& program : programs_) program->set_full(is_full);
}

namespace {

std::shared_ptr<PipelineStageModule> make_module(
    std::string class_name,
    const std::vector<std::vector<PipelineLayer>>& chunks) {
  std::vector<std::shared_ptr<DividedProgram>> programs;
  for (const auto& layers : chunks) {
    for (const PipelineLayer& layer : layers) {
      if (layer.program) programs.push_back(layer.program);
    }
  }
  if (programs.empty())
    return std::make_shared<PipelineStageModule>(std::move(class_name));
  return std::make_shared<ProgramStageModule>(
      std::move(class_name), std::move(programs));
}

// Names of the layers' tensors that a module does not have.
std::set<std::string> names_elsewhere(
    const std::vector<PipelineLayer>& layers,
    const torch::nn::Module& module) {
  std::set<std::string> names;
  for (const PipelineLayer& layer : layers) {
    visit_layer(layer, [&](const std::string& name, const at::Tensor&, bool) {
      names.insert(name);
    });
  }
  for (const auto& item : module.named_parameters()) names.erase(item.key());
  for (const auto& item : module.named_buffers()) names.erase(item.key());
  return names;
}

}  // namespace

PipelineStages make_stages(
    const std::vector<PipelineLayer>& layers,
    const std::vector<std::size_t>& begins,
    const PipelineStagePlaces& places,
    int rank) {
  PipelineStages stages;
  const std::string& first =
      layers[0].modules.empty() ? layers[0].name : layers[0].modules[0].first;
  stages.layers.resize(begins.size());
  stages.chunks.resize(static_cast<std::size_t>(places.num_chunks));
  std::vector<int> rank_of_layer;
  std::size_t stage = 0;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (stage + 1 < begins.size() && begins[stage + 1] == i) ++stage;
    stages.layers[stage].push_back(layers[i].name);
    rank_of_layer.push_back(places.rank_of(static_cast<int>(stage)));
    if (rank_of_layer.back() == rank) {
      const int chunk = places.chunk_of(static_cast<int>(stage));
      stages.chunks[static_cast<std::size_t>(chunk)].push_back(layers[i]);
    }
  }

  stages.module = make_module(
      class_of_node(first.substr(0, first.find('.'))), stages.chunks);
  std::set<std::string> own_names;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (rank_of_layer[i] != rank) continue;
    visit_layer(
        layers[i], [&](const std::string& name, const at::Tensor&, bool) {
          own_names.insert(name);
        });
  }
  StageTree tree(stages.module);
  for (const TensorUse& use : uses_of(layers, rank_of_layer)) {
    if (use.is_buffer || use.ranks.size() < 2) continue;
    TiedParameter tied{use.name, {}, use.ranks};
    if (has_rank(use.ranks, rank)) tied.tensor = use.tensor;
    // This name comes before those of the layers, so it is the parameter's
    // first name here as well.
    if (tied.tensor.defined() && !own_names.contains(use.name))
      tree.add(use.name, use.tensor);
    stages.tied.push_back(std::move(tied));
  }
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (rank_of_layer[i] != rank) continue;
    for (const auto& [name, module] : layers[i].modules) tree.add(name, module);
    for (const auto& [name, tensor] : layers[i].parameters)
      tree.add(name, tensor);
    for (const auto& [name, tensor] : layers[i].buffers)
      tree.add(name, tensor, /*is_buffer=*/true);
  }
  stages.elsewhere = names_elsewhere(layers, *stages.module);
  return stages;
}

std::shared_ptr<PipelineStageModule> make_whole_module(
    const std::vector<PipelineLayer>& layers) {
  return make_stages(layers, {0}, {}, 0).module;
}

void free_other_stages(
    const std::vector<PipelineLayer>& layers,
    const PipelineStageModule& module) {
  std::unordered_set<const void*> kept;
  for (const at::Tensor& tensor : module.parameters())
    kept.insert(tensor.unsafeGetTensorImpl());
  for (const at::Tensor& tensor : module.buffers())
    kept.insert(tensor.unsafeGetTensorImpl());
  const at::NoGradGuard no_grad;
  for (const PipelineLayer& layer : layers) {
    visit_layer(layer, [&](const std::string&, const at::Tensor& tensor, bool) {
      if (kept.contains(tensor.unsafeGetTensorImpl()) || tensor.is_meta())
        return;
      const at::Tensor empty =
          at::empty_like(tensor, tensor.options().device(at::kMeta));
      tensor.unsafeGetTensorImpl()->shallow_copy_from(empty.getIntrusivePtr());
    });
  }
}

}  // namespace accelerate::detail
