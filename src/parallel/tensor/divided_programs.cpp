#include "parallel/tensor/divided_programs.h"

#include <algorithm>
#include <string>
#include <utility>

#include <torch/nn/module.h>

namespace accelerate::detail {

namespace {

std::vector<DividedParameter> divided_parameters(
    const ParameterTable& table,
    int num_ranks,
    const std::vector<SplitParameter>& splits) {
  std::vector<DividedParameter> found;
  for (const SplitParameter& split : splits) {
    const Parameter* const row = table.find(split.name);
    if (row == nullptr) continue;
    DividedParameter parameter{
        .tensor = row->tensor,
        .module = split.module,
        .has_projections = !split.projections.empty(),
        .sums_gradient = split.sums_gradient};
    if (split.dim) {
      const std::int64_t size =
          row->layout.global_shape[static_cast<std::size_t>(*split.dim)];
      parameter.begins = begins_of(split, size, num_ranks);
    }
    if (split.product) {
      parameter.product = DividedParameter::Layer{
          split.product->is_rowwise,
          split.product->input,
          split.product->output,
          split.product->is_transposed};
    }
    if (split.embedding) {
      parameter.embedding = DividedParameter::Layer{
          split.embedding->is_vocabulary, Replicate{}, split.embedding->output};
    }
    found.push_back(std::move(parameter));
  }
  return found;
}

}  // namespace

DividedPrograms divided_programs_in(const torch::nn::Module& module) {
  DividedPrograms programs;
  for (const auto& each : module.modules()) {
    if (auto program = std::dynamic_pointer_cast<DividedProgram>(each))
      programs.push_back(std::move(program));
  }
  return programs;
}

bool is_embedding_of(
    const DividedPrograms& programs,
    const torch::nn::Module& module) {
  const auto parameters = module.named_parameters(/*recurse=*/false);
  const at::Tensor* const weight = parameters.find("weight");
  return weight != nullptr &&
      std::any_of(programs.begin(), programs.end(), [&](const auto& program) {
           return program->is_embedding(*weight);
         });
}

void divide_programs(
    const DividedPrograms& programs,
    const ParameterTable& table,
    int num_ranks,
    int rank,
    std::vector<SplitParameter>& splits) {
  if (programs.empty()) return;
  const auto parameters = divided_parameters(table, num_ranks, splits);
  for (const auto& program : programs) {
    for (const at::Tensor& tensor : program->divide(parameters, rank)) {
      const Parameter* const row = table.find(tensor);
      if (row == nullptr) continue;
      const auto known =
          std::find_if(splits.begin(), splits.end(), [&](const auto& split) {
            return split.name == row->name;
          });
      if (known != splits.end()) {
        known->sums_gradient = true;
        continue;
      }
      splits.push_back(
          {.name = row->name,
           .module = row->name.substr(0, row->name.rfind('.')),
           .sums_gradient = true});
    }
  }
}

}  // namespace accelerate::detail
