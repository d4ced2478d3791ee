#include "params/optimizer_state.h"

#include <algorithm>
#include <memory>
#include <set>
#include <sstream>
#include <utility>

#include <ATen/Functions.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "params/optimizer_algorithms.h"

namespace accelerate::detail {

namespace {

using Renaming = std::map<std::string, std::string>;

// LibTorch identifies a parameter by its address, in decimal.
std::string address_of(const at::Tensor& parameter) {
  return std::to_string(
      reinterpret_cast<std::size_t>(parameter.unsafeGetTensorImpl()));
}

// A parameter's key here; no other key in an archive has this form.
std::string label_of(const std::string& name) { return "parameter:" + name; }

std::string renamed(const Renaming& renaming, const std::string& text) {
  const auto found = renaming.find(text);
  return found == renaming.end() ? text : found->second;
}

// A value that StateDict cannot represent, as the bytes of LibTorch's pickle.
at::Tensor pickled(const c10::IValue& value) {
  const std::vector<char> bytes = torch::jit::pickle_save(value);
  at::Tensor tensor =
      at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::ranges::copy(bytes, static_cast<char*>(tensor.data_ptr()));
  return tensor;
}

c10::IValue unpickled(const at::Tensor& tensor) {
  const auto* const begin = static_cast<const char*>(tensor.const_data_ptr());
  return torch::jit::pickle_load(
      std::vector<char>(begin, begin + tensor.numel()));
}

StateDict read_tree(
    torch::serialize::InputArchive& archive,
    const Renaming& renaming) {
  StateDict tree;
  for (const std::string& key : archive.keys()) {
    const std::string name = renamed(renaming, key);
    torch::serialize::InputArchive inner;
    at::Tensor tensor;
    c10::IValue value;
    // An archive stores parameters and buffers, which are both tensors, in
    // different ways.
    if (archive.try_read(key, inner)) {
      tree.set(name, read_tree(inner, renaming));
    } else if (
        archive.try_read(key, tensor, /*is_buffer=*/true) ||
        archive.try_read(key, tensor, /*is_buffer=*/false)) {
      tree.set(name, tensor.detach());
    } else if (archive.try_read(key, value)) {
      if (value.isInt()) {
        tree.set(name, value.toInt());
      } else if (value.isDouble()) {
        tree.set(name, value.toDouble());
      } else if (value.isBool()) {
        tree.set(name, value.toBool());
      } else if (value.isString()) {
        tree.set(name, renamed(renaming, value.toStringRef()));
      } else if (value.isTensor()) {
        tree.set(name, StateDict{{"tensor", value.toTensor().detach()}});
      } else {
        tree.set(name, StateDict{{"pickle", pickled(value)}});
      }
    }
  }
  return tree;
}

void write_tree(
    const StateDict& tree,
    const Renaming& renaming,
    torch::serialize::OutputArchive& archive) {
  for (const auto& [key, value] : tree.values()) {
    const std::string name = renamed(renaming, key);
    if (const auto* inner = std::get_if<StateDict>(&value)) {
      if (inner->values().size() == 1 && inner->contains("tensor")) {
        archive.write(name, c10::IValue(inner->get<at::Tensor>("tensor")));
      } else if (inner->values().size() == 1 && inner->contains("pickle")) {
        archive.write(name, unpickled(inner->get<at::Tensor>("pickle")));
      } else {
        torch::serialize::OutputArchive child(archive.compilation_unit());
        write_tree(*inner, renaming, child);
        archive.write(name, child);
      }
    } else if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      archive.write(name, *tensor, /*is_buffer=*/true);
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      archive.write(name, c10::IValue(*integer));
    } else if (const auto* real = std::get_if<double>(&value)) {
      archive.write(name, c10::IValue(*real));
    } else if (const auto* truth = std::get_if<bool>(&value)) {
      archive.write(name, c10::IValue(*truth));
    } else if (const auto* text = std::get_if<std::string>(&value)) {
      archive.write(name, c10::IValue(renamed(renaming, *text)));
    } else {
      throw CheckpointError(format(
          "[checkpoint] \"{}\" of an optimizer's archive is damaged", key));
    }
  }
}

// torch::optim::serialize matches the parameters of a group by position, so
// they are listed in this optimizer's order; states are found by name.
StateDict in_order_of(
    const torch::optim::Optimizer& optimizer,
    const StateDict& archive,
    const NameOfParameter& name_of) {
  if (!archive.contains("param_groups")) return archive;
  StateDict groups = archive.get<StateDict>("param_groups");
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const std::string key = format("param_groups/{}", g);
    if (!groups.contains(key)) continue;
    StateDict group = groups.get<StateDict>(key);
    const auto& parameters = optimizer.param_groups()[g].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const std::string place = format("params/{}", i);
      if (group.contains(place)) {
        group.set(place, label_of(name_of(parameters[i])));
      }
    }
    groups.set(key, std::move(group));
  }
  StateDict ordered = archive;
  ordered.set("param_groups", std::move(groups));
  return ordered;
}

std::string bytes_of_archive(torch::serialize::OutputArchive& archive) {
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

// Returns what the optimizer's own save() writes, with names in place of the
// parameter addresses that LibTorch writes; for unknown optimizer classes.
// Throws ConfigError if the optimizer has state but its save() writes nothing.
StateDict read_archive(
    const torch::optim::Optimizer& optimizer,
    const NameOfParameter& name_of) {
  torch::serialize::OutputArchive output;
  optimizer.save(output);
  const std::string bytes = bytes_of_archive(output);
  torch::serialize::InputArchive input;
  input.load_from(bytes.data(), bytes.size());
  Renaming to_names;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      to_names.emplace(address_of(parameter), label_of(name_of(parameter)));
    }
  }
  StateDict archive = read_tree(input, to_names);
  if (archive.empty() && !optimizer.state().empty()) {
    throw ConfigError(
        "[checkpoint] an optimizer of a user-defined class has state, but its "
        "save() writes nothing; override save() and load(), as "
        "torch::optim::serialize<State, Options>() does");
  }
  return archive;
}

// Passes such an archive to the optimizer's own load().
void write_archive(
    torch::optim::Optimizer& optimizer,
    const StateDict& archive,
    const NameOfParameter& name_of) {
  // The class has no state.
  if (archive.empty()) return;
  Renaming to_addresses;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      to_addresses.emplace(label_of(name_of(parameter)), address_of(parameter));
    }
  }
  torch::serialize::OutputArchive output;
  write_tree(in_order_of(optimizer, archive, name_of), to_addresses, output);
  const std::string bytes = bytes_of_archive(output);
  torch::serialize::InputArchive input;
  input.load_from(bytes.data(), bytes.size());
  optimizer.load(input);
}

using torch::optim::Optimizer;

// A module's parameters() has a tied tensor once for each of its names, so an
// optimizer may hold it several times; here it counts once, as in Python.
std::vector<std::vector<std::string>> names_by_group(
    const Optimizer& optimizer,
    const NameOfParameter& name_of) {
  std::vector<std::vector<std::string>> names;
  std::set<std::string> known;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      const std::string name = name_of(parameter);
      if (known.insert(name).second) names.back().push_back(name);
    }
  }
  return names;
}

}  // namespace

OptimizerState read_optimizer_state(
    const Optimizer& optimizer,
    const NameOfParameter& name_of) {
  OptimizerState state;
  const OptimizerAlgorithm* const known = find_algorithm(optimizer);
  state.algorithm = known == nullptr ? "archive" : known->name;
  for (auto& names : names_by_group(optimizer, name_of)) {
    state.groups.push_back({{}, std::move(names)});
  }
  if (known == nullptr) {
    state.others = read_archive(optimizer, name_of);
    return state;
  }
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    state.groups[g].options = known->options_of(
        const_cast<torch::optim::OptimizerOptions&>(group.options()));
    for (const at::Tensor& parameter : group.params()) {
      const auto found =
          optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      state.parameters.emplace(
          name_of(parameter), known->state_of(*found->second));
    }
  }
  return state;
}

std::vector<std::string> optimizer_complaints(
    const Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of,
    const std::function<bool(const std::string& name)>& may_be_missing) {
  std::vector<std::string> complaints;
  const OptimizerAlgorithm* const known = find_algorithm(optimizer);
  const std::string present = known == nullptr ? "archive" : known->name;
  if (present != state.algorithm) {
    complaints.push_back(format(
        "the state is of {}, but the optimizer is {}",
        state.algorithm,
        present));
    return complaints;
  }
  const auto names = names_by_group(optimizer, name_of);
  if (names.size() != state.groups.size()) {
    complaints.push_back(format(
        "the state has {} parameter groups, but the optimizer has {}",
        state.groups.size(),
        names.size()));
    return complaints;
  }
  std::set<std::string> saved, wanted;
  for (std::size_t g = 0; g < names.size(); ++g) {
    wanted.insert(names[g].begin(), names[g].end());
    saved.insert(
        state.groups[g].parameters.begin(), state.groups[g].parameters.end());
  }
  for (const std::string& name : wanted) {
    if (!saved.contains(name) && !may_be_missing(name)) {
      complaints.push_back(format("the state has no parameter {}", name));
    }
  }
  for (const std::string& name : saved) {
    if (!wanted.contains(name) && !may_be_missing(name)) {
      complaints.push_back(format("the optimizer has no parameter {}", name));
    }
  }
  return complaints;
}

void write_optimizer_state(
    Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of) {
  if (state.algorithm == "archive") {
    write_archive(optimizer, state.others, name_of);
    return;
  }
  const OptimizerAlgorithm* const known = find_algorithm(state.algorithm);
  if (known == nullptr) {
    throw CheckpointError(format(
        "[checkpoint] optimizer {} is not known to this version",
        state.algorithm));
  }
  // Everything is built before anything is changed.
  std::vector<
      std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>
      made;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g) {
    const auto& group = optimizer.param_groups()[g];
    options.push_back(group.options().clone());
    known->set_options(*options.back(), state.groups.at(g).options);
    for (const at::Tensor& parameter : group.params()) {
      const auto found = state.parameters.find(name_of(parameter));
      if (found == state.parameters.end()) continue;
      made.emplace_back(
          parameter.unsafeGetTensorImpl(), known->make_state(found->second));
    }
  }
  optimizer.state().clear();
  for (auto& [key, value] : made) optimizer.state()[key] = std::move(value);
  for (std::size_t g = 0; g < options.size(); ++g) {
    optimizer.param_groups()[g].set_options(std::move(options[g]));
  }
}

}  // namespace accelerate::detail
