#include "params/optimizer_algorithms.h"

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

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

// Reads fields from a StateDict. Absent optional values become unset.
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
          "[checkpoint] \"{}\" of the optimizer must have "
          "two values, but does not",
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

int num_moments(const torch::optim::AdamWOptions& o) {
  return o.amsgrad() ? 3 : 2;
}
int num_moments(const torch::optim::AdamOptions& o) {
  return o.amsgrad() ? 3 : 2;
}
int num_moments(const torch::optim::SGDOptions& o) {
  return o.momentum() != 0 ? 1 : 0;
}
int num_moments(const torch::optim::AdagradOptions&) { return 1; }
int num_moments(const torch::optim::RMSpropOptions& o) {
  return 1 + (o.momentum() > 0 ? 1 : 0) + (o.centered() ? 1 : 0);
}
int num_moments(const torch::optim::LBFGSOptions&) { return 0; }

template <class T, class Base>
StateDict collect(Base& object) {
  StateDict state;
  visit(static_cast<T&>(object), Collect{state});
  return state;
}

template <class Options, class State>
constexpr OptimizerAlgorithm algorithm(const char* name) {
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
      },
      [](const torch::optim::OptimizerOptions& options) {
        return num_moments(static_cast<const Options&>(options));
      }};
}

using namespace torch::optim;  // NOLINT: names of the table

const OptimizerAlgorithm kAlgorithms[] = {
    algorithm<AdamWOptions, AdamWParamState>("AdamW"),
    algorithm<AdamOptions, AdamParamState>("Adam"),
    algorithm<SGDOptions, SGDParamState>("SGD"),
    algorithm<AdagradOptions, AdagradParamState>("Adagrad"),
    algorithm<RMSpropOptions, RMSpropParamState>("RMSprop"),
    algorithm<LBFGSOptions, LBFGSParamState>("LBFGS")};

}  // namespace

const OptimizerAlgorithm* find_algorithm(
    const torch::optim::Optimizer& optimizer) {
  for (const OptimizerAlgorithm& each : kAlgorithms) {
    const auto& groups = optimizer.param_groups();
    const bool has_options =
        !groups.empty() && std::ranges::all_of(groups, [&](const auto& group) {
          return each.is_options(group.options());
        });
    const bool has_state = std::ranges::all_of(
        optimizer.state(),
        [&](const auto& entry) { return each.is_state(*entry.second); });
    if (has_options && has_state) return &each;
  }
  return nullptr;
}

const OptimizerAlgorithm* find_algorithm(std::string_view name) {
  for (const OptimizerAlgorithm& each : kAlgorithms) {
    if (name == each.name) return &each;
  }
  return nullptr;
}

}  // namespace accelerate::detail
