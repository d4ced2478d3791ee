#include "train/optimizers/optimizer_fit.h"

#include <algorithm>
#include <array>
#include <string>
#include <typeindex>
#include <typeinfo>

#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accelerate/error.h>
#include <accelerate/optimizers.h>

#include "base/text/text.h"
#include "comm/mesh.h"
#include "optim/made_from_engine.h"
#include "train/session/prepared.h"

namespace accelerate::detail {

namespace {

bool is_elementwise(const torch::optim::Optimizer& optimizer) {
  static const std::array<std::type_index, 9> known{
      typeid(torch::optim::SGD),
      typeid(torch::optim::Adam),
      typeid(torch::optim::AdamW),
      typeid(torch::optim::Adagrad),
      typeid(torch::optim::RMSprop),
      typeid(optim::SGD),
      typeid(optim::Adam),
      typeid(optim::AdamW),
      typeid(optim::Adagrad)};
  return std::ranges::find(known, typeid(optimizer)) != known.end() ||
      dynamic_cast<const optim::Elementwise*>(&optimizer) != nullptr ||
      dynamic_cast<const MadeFromDeepSpeed*>(&optimizer) != nullptr ||
      // lomo_backward() makes its own checks.
      dynamic_cast<const optim::FusedBackwardOptimizer*>(&optimizer) != nullptr;
}

// One of the model's parameters that `optimizer` steps on and that `is_wanted`
// accepts; null if there is none.
template <class Predicate>
const Parameter* find_row(
    const torch::optim::Optimizer& optimizer,
    const ParameterTable& table,
    const Predicate& is_wanted) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const Parameter* row = table.find(parameter);
      if (row == nullptr) row = table.find_local(parameter);
      if (row != nullptr && is_wanted(*row)) return row;
    }
  }
  return nullptr;
}

std::string describe_split(const Parameter& row, const Mesh& mesh) {
  const Axis axis = row.layout.split_axes.front();
  return format(
      "\"{}\" is divided over the {} ranks along {}",
      row.name,
      placement_mesh(row.layout, mesh).degree(axis),
      name_of(axis));
}

[[noreturn]] void refuse(
    const torch::optim::Optimizer& optimizer,
    const std::string& what_ranks_hold) {
  const std::string name = c10::demangle(typeid(optimizer).name());
  if (typeid(optimizer) == typeid(torch::optim::LBFGS)) {
    throw ConfigError(format(
        "[train] {} computes its steps from all parameters at once, but {}; "
        "prepare SGD, Adam, AdamW, Adagrad or RMSprop, or replicate the model",
        name,
        what_ranks_hold));
  }
  throw ConfigError(format(
      "[train] {} may compute its steps from more than the parts of parameters "
      "that this rank holds: {}; if it updates each element from that "
      "element's gradient and state alone, derive the class from "
      "accelerate::optim::Elementwise as well (from Parameterwise if it needs "
      "full parameters, which ranks of a pipeline have); otherwise replicate "
      "the model",
      name,
      what_ranks_hold));
}

}  // namespace

void require_fitting_optimizer(
    const torch::optim::Optimizer& optimizer,
    const PreparedModel& model) {
  if (is_elementwise(optimizer)) return;
  const auto is_divided = [](const Parameter& row) {
    return !row.layout.is_unsharded();
  };
  if (const Parameter* row = find_row(optimizer, model.table, is_divided))
    refuse(optimizer, describe_split(*row, model.mesh));
  const int num_stages = model.mesh.degree(Axis::pipeline);
  const bool is_stage = num_stages > 1 && !model.evaluation_mode;
  if (!is_stage ||
      dynamic_cast<const optim::Parameterwise*>(&optimizer) != nullptr)
    return;
  const auto is_any = [](const Parameter&) { return true; };
  if (find_row(optimizer, model.table, is_any) != nullptr) {
    refuse(
        optimizer,
        format("a pipeline of {} stages divides the parameters", num_stages));
  }
}

}  // namespace accelerate::detail
