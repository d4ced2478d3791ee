#include "params/optimizer_state.h"

#include <algorithm>
#include <concepts>
#include <deque>
#include <optional>
#include <set>
#include <tuple>
#include <typeinfo>
#include <utility>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "params/optimizer_archive.h"

namespace accelerate::detail {

namespace {

using torch::optim::Optimizer;

// Writes fields to a StateDict.
struct Collect {
  StateDict& state;

  template <class T>
  void operator()(const char* key, const T& value) const {
    state.set(key, StateDict::Value(value));
  }
  // Undefined tensors are left out, as in torch.
  void operator()(const char* key, const at::Tensor& value) const {
    if (value.defined()) state.set(key, value);
  }
  void operator()(const char* key, const std::tuple<double, double>& value)
      const {
    state.set(key, std::vector<double>{std::get<0>(value), std::get<1>(value)});
  }
  template <class T>
  void operator()(const char* key, const std::optional<T>& value) const {
    if (value) (*this)(key, *value);
  }
  void operator()(const char* key, const std::vector<at::Tensor>& value) const {
    put_list(key, value);
  }
  void operator()(const char* key, const std::deque<at::Tensor>& value) const {
    put_list(key, value);
  }

 private:
  template <class List>
  void put_list(const char* key, const List& tensors) const {
    StateDict list;
    list.set("size", static_cast<std::int64_t>(tensors.size()));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      list.set(std::to_string(i), tensors[i]);
    }
    state.set(key, std::move(list));
  }
};

// Reads fields from a StateDict. Optional values that are absent become unset.
struct Restore {
  const StateDict& state;

  template <class T>
  void operator()(const char* key, T& value) const {
    value = state.get<T>(key);
  }
  void operator()(const char* key, at::Tensor& value) const {
    value = state.contains(key) ? state.get<at::Tensor>(key) : at::Tensor();
  }
  void operator()(const char* key, std::tuple<double, double>& value) const {
    const auto two = state.get<std::vector<double>>(key);
    if (two.size() != 2) {
      throw CheckpointError(format(
          "[checkpoint] \"{}\" of the optimizer does not have two values",
          key));
    }
    value = {two[0], two[1]};
  }
  template <class T>
  void operator()(const char* key, std::optional<T>& value) const {
    value.reset();
    if (!state.contains(key)) return;
    T inner{};
    (*this)(key, inner);
    value = std::move(inner);
  }
  void operator()(const char* key, std::vector<at::Tensor>& value) const {
    get_list(key, value);
  }
  void operator()(const char* key, std::deque<at::Tensor>& value) const {
    get_list(key, value);
  }

 private:
  template <class List>
  void get_list(const char* key, List& tensors) const {
    const auto list = state.get<StateDict>(key);
    tensors.clear();
    const auto size = list.get<std::int64_t>("size");
    for (std::int64_t i = 0; i < size; ++i) {
      tensors.push_back(list.get<at::Tensor>(std::to_string(i)));
    }
  }
};

template <class T, class One, class Other>
concept EitherOf = std::same_as<T, One> || std::same_as<T, Other>;

template <
    EitherOf<torch::optim::AdamOptions, torch::optim::AdamWOptions> Options,
    class Visit>
void visit(Options& o, const Visit& field) {
  field("lr", o.lr());
  field("betas", o.betas());
  field("eps", o.eps());
  field("weight_decay", o.weight_decay());
  field("amsgrad", o.amsgrad());
}
template <
    EitherOf<torch::optim::AdamParamState, torch::optim::AdamWParamState> State,
    class Visit>
void visit(State& s, const Visit& field) {
  field("step", s.step());
  field("exp_avg", s.exp_avg());
  field("exp_avg_sq", s.exp_avg_sq());
  field("max_exp_avg_sq", s.max_exp_avg_sq());
}
template <class Visit>
void visit(torch::optim::SGDOptions& o, const Visit& field) {
  field("lr", o.lr());
  field("momentum", o.momentum());
  field("dampening", o.dampening());
  field("weight_decay", o.weight_decay());
  field("nesterov", o.nesterov());
}
template <class Visit>
void visit(torch::optim::SGDParamState& s, const Visit& field) {
  field("momentum_buffer", s.momentum_buffer());
}
template <class Visit>
void visit(torch::optim::AdagradOptions& o, const Visit& field) {
  field("lr", o.lr());
  field("lr_decay", o.lr_decay());
  field("weight_decay", o.weight_decay());
  field("initial_accumulator_value", o.initial_accumulator_value());
  field("eps", o.eps());
}
template <class Visit>
void visit(torch::optim::AdagradParamState& s, const Visit& field) {
  field("step", s.step());
  field("sum", s.sum());
}
template <class Visit>
void visit(torch::optim::RMSpropOptions& o, const Visit& field) {
  field("lr", o.lr());
  field("alpha", o.alpha());
  field("eps", o.eps());
  field("weight_decay", o.weight_decay());
  field("momentum", o.momentum());
  field("centered", o.centered());
}
template <class Visit>
void visit(torch::optim::RMSpropParamState& s, const Visit& field) {
  field("step", s.step());
  field("square_avg", s.square_avg());
  field("momentum_buffer", s.momentum_buffer());
  field("grad_avg", s.grad_avg());
}
template <class Visit>
void visit(torch::optim::LBFGSOptions& o, const Visit& field) {
  field("lr", o.lr());
  field("max_iter", o.max_iter());
  field("max_eval", o.max_eval());
  field("tolerance_grad", o.tolerance_grad());
  field("tolerance_change", o.tolerance_change());
  field("history_size", o.history_size());
  field("line_search_fn", o.line_search_fn());
}
template <class Visit>
void visit(torch::optim::LBFGSParamState& s, const Visit& field) {
  field("func_evals", s.func_evals());
  field("n_iter", s.n_iter());
  field("t", s.t());
  field("prev_loss", s.prev_loss());
  field("d", s.d());
  field("H_diag", s.H_diag());
  field("prev_flat_grad", s.prev_flat_grad());
  field("old_dirs", s.old_dirs());
  field("old_stps", s.old_stps());
  field("ro", s.ro());
  field("al", s.al());
}

// A known algorithm, whose options and state have these types.
struct Algorithm {
  const char* name;
  bool (*is_options)(const torch::optim::OptimizerOptions&);
  bool (*is_state)(const torch::optim::OptimizerParamState&);
  StateDict (*options_of)(torch::optim::OptimizerOptions&);
  StateDict (*state_of)(torch::optim::OptimizerParamState&);
  void (*set_options)(torch::optim::OptimizerOptions&, const StateDict&);
  std::unique_ptr<torch::optim::OptimizerParamState> (*make_state)(
      const StateDict&);
};

template <class T, class Base>
StateDict collect(Base& object) {
  StateDict state;
  visit(static_cast<T&>(object), Collect{state});
  return state;
}

template <class Options, class State>
constexpr Algorithm algorithm(const char* name) {
  return {
      name,
      [](const torch::optim::OptimizerOptions& options) {
        return dynamic_cast<const Options*>(&options) != nullptr;
      },
      [](const torch::optim::OptimizerParamState& state) {
        return dynamic_cast<const State*>(&state) != nullptr;
      },
      &collect<Options, torch::optim::OptimizerOptions>,
      &collect<State, torch::optim::OptimizerParamState>,
      [](torch::optim::OptimizerOptions& options, const StateDict& state) {
        visit(static_cast<Options&>(options), Restore{state});
      },
      [](const StateDict& state)
          -> std::unique_ptr<torch::optim::OptimizerParamState> {
        auto made = std::make_unique<State>();
        visit(*made, Restore{state});
        return made;
      }};
}

using namespace torch::optim;  // NOLINT: names of the table

const Algorithm kAlgorithms[] = {
    algorithm<AdamWOptions, AdamWParamState>("AdamW"),
    algorithm<AdamOptions, AdamParamState>("Adam"),
    algorithm<SGDOptions, SGDParamState>("SGD"),
    algorithm<AdagradOptions, AdagradParamState>("Adagrad"),
    algorithm<RMSpropOptions, RMSpropParamState>("RMSprop"),
    algorithm<LBFGSOptions, LBFGSParamState>("LBFGS")};

// Null for a class with its own type of options or state.
const Algorithm* find_algorithm(const Optimizer& optimizer) {
  for (const Algorithm& each : kAlgorithms) {
    const auto& groups = optimizer.param_groups();
    const bool has_options = !groups.empty() &&
        std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
          return each.is_options(group.options());
        });
    const bool has_state = std::all_of(
        optimizer.state().begin(),
        optimizer.state().end(),
        [&](const auto& entry) { return each.is_state(*entry.second); });
    if (has_options && has_state) return &each;
  }
  return nullptr;
}

std::vector<std::vector<std::string>> names_by_group(
    const Optimizer& optimizer,
    const NameOfParameter& name_of) {
  std::vector<std::vector<std::string>> names;
  for (const auto& group : optimizer.param_groups()) {
    names.emplace_back();
    for (const at::Tensor& parameter : group.params()) {
      names.back().push_back(name_of(parameter));
    }
  }
  return names;
}

}  // namespace

OptimizerState read_optimizer_state(
    const Optimizer& optimizer,
    const NameOfParameter& name_of) {
  OptimizerState state;
  const Algorithm* const known = find_algorithm(optimizer);
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
    for (std::size_t i = 0; i < group.params().size(); ++i) {
      const auto found =
          optimizer.state().find(group.params()[i].unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      state.parameters.emplace(
          state.groups[g].parameters[i], known->state_of(*found->second));
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
  const Algorithm* const known = find_algorithm(optimizer);
  const std::string present = known == nullptr ? "archive" : known->name;
  if (present != state.algorithm) {
    complaints.push_back(format(
        "the state is that of {}, the optimizer is {}",
        state.algorithm,
        present));
    return complaints;
  }
  const auto names = names_by_group(optimizer, name_of);
  if (names.size() != state.groups.size()) {
    complaints.push_back(format(
        "the state has {} parameter groups, the optimizer {}",
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
  const Algorithm* known = nullptr;
  for (const Algorithm& each : kAlgorithms) {
    if (state.algorithm == each.name) known = &each;
  }
  if (known == nullptr) {
    throw CheckpointError(format(
        "[checkpoint] optimizer {} is not known to this version",
        state.algorithm));
  }
  // Everything is built before anything is changed.
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> made;
  std::vector<std::unique_ptr<OptimizerOptions>> options;
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

namespace {

// Throws CheckpointError unless `theirs` are the options of the Python class
// that has the same algorithm.
void require_same_class(
    const std::string& algorithm,
    const StateDict& ours,
    const StateDict& theirs) {
  for (const auto& [key, value] : ours.values()) {
    // LBFGS keeps None for no line search.
    if (theirs.contains(key) || key == "line_search_fn") continue;
    throw CheckpointError(format(
        "[checkpoint] the state of a Python optimizer has no option \"{}\", "
        "which {} has; prepare an optimizer of the class that was saved",
        key,
        algorithm));
  }
  const bool is_adam = algorithm == "Adam" || algorithm == "AdamW";
  if (!is_adam || !theirs.contains("decoupled_weight_decay")) return;
  const bool is_decoupled = theirs.get<bool>("decoupled_weight_decay");
  if (is_decoupled == (algorithm == "AdamW") ||
      theirs.get<double>("weight_decay") == 0) {
    return;
  }
  throw CheckpointError(format(
      "[checkpoint] the Python optimizer decayed weights {} the gradients, "
      "which {} does not; prepare {}",
      is_decoupled ? "independently of" : "through",
      algorithm,
      is_decoupled ? "AdamW" : "Adam"));
}

}  // namespace

OptimizerState adapt_python_state(
    const Optimizer& optimizer,
    const OptimizerState& state,
    const NameOfParameter& name_of) {
  const OptimizerState present = read_optimizer_state(optimizer, name_of);
  std::vector<std::string> names, numbers;
  for (const auto& group : present.groups) {
    names.insert(names.end(), group.parameters.begin(), group.parameters.end());
  }
  for (const auto& group : state.groups) {
    numbers.insert(
        numbers.end(), group.parameters.begin(), group.parameters.end());
  }
  if (names.size() != numbers.size() ||
      state.groups.size() != present.groups.size()) {
    throw CheckpointError(format(
        "[checkpoint] the state has {} parameters in {} groups, the optimizer "
        "has {} in {}",
        numbers.size(),
        state.groups.size(),
        names.size(),
        present.groups.size()));
  }
  const bool has_state = std::any_of(
      state.parameters.begin(), state.parameters.end(), [](const auto& each) {
        return !each.second.empty();
      });
  if (present.algorithm == "archive" && has_state) {
    throw CheckpointError(
        "[checkpoint] the optimizer is of a class of this program or library, "
        "which cannot take the state of a Python optimizer; prepare one of "
        "LibTorch's or this library's that Python has, too");
  }
  OptimizerState adapted;
  adapted.algorithm = present.algorithm;
  adapted.groups = present.groups;
  for (std::size_t g = 0; g < state.groups.size(); ++g) {
    const StateDict& theirs = state.groups[g].options;
    StateDict& ours = adapted.groups[g].options;
    require_same_class(present.algorithm, ours, theirs);
    for (const auto& [key, value] : present.groups[g].options.values()) {
      if (!theirs.contains(key)) continue;
      if (std::holds_alternative<std::int64_t>(value)) {
        ours.set(key, static_cast<std::int64_t>(theirs.get<double>(key)));
      } else {
        ours.set(key, theirs.values().find(key)->second);
      }
    }
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto found = state.parameters.find(numbers[i]);
    if (found == state.parameters.end() || found->second.empty()) continue;
    adapted.parameters.emplace(names[i], found->second);
  }
  return adapted;
}

StateDict to_state_dict(const OptimizerState& state) {
  StateDict tree;
  tree.set("algorithm", state.algorithm);
  std::vector<StateDict> groups;
  for (const OptimizerState::Group& group : state.groups) {
    StateDict parameters;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      parameters.set(group.parameters[i], static_cast<std::int64_t>(i));
    }
    groups.push_back(
        {{"options", group.options}, {"parameters", std::move(parameters)}});
  }
  tree.set("groups", std::move(groups));
  StateDict parameters;
  for (const auto& [name, values] : state.parameters) {
    parameters.set(name, values);
  }
  tree.set("parameters", std::move(parameters));
  if (!state.others.empty()) tree.set("archive", state.others);
  return tree;
}

OptimizerState optimizer_state_from(const StateDict& tree) {
  OptimizerState state;
  state.algorithm = tree.get<std::string>("algorithm");
  for (const StateDict& saved : tree.get<std::vector<StateDict>>("groups")) {
    OptimizerState::Group group;
    group.options = saved.get<StateDict>("options");
    const auto parameters = saved.get<StateDict>("parameters");
    group.parameters.resize(parameters.values().size());
    for (const auto& [name, place] : parameters.values()) {
      const auto index =
          static_cast<std::size_t>(parameters.get<std::int64_t>(name));
      if (index >= group.parameters.size() ||
          !group.parameters[index].empty()) {
        throw CheckpointError(
            "[checkpoint] the parameters of an optimizer's state are damaged");
      }
      group.parameters[index] = name;
    }
    state.groups.push_back(std::move(group));
  }
  const auto parameters = tree.get<StateDict>("parameters");
  for (const auto& [name, value] : parameters.values()) {
    state.parameters.emplace(name, parameters.get<StateDict>(name));
  }
  if (tree.contains("archive")) state.others = tree.get<StateDict>("archive");
  return state;
}

}  // namespace accelerate::detail
