#pragma once

#include <memory>
#include <vector>

#include <accelerate/detail/divided_program.h>

#include "parallel/tensor/split_layers.h"
#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// A module, and those in it, whose code is a graph with constant sizes.
using DividedPrograms = std::vector<std::shared_ptr<DividedProgram>>;

DividedPrograms divided_programs_in(const torch::nn::Module& module);

/// Whether a module's weight is an embedding table of one of the programs.
bool is_embedding_of(
    const DividedPrograms& programs,
    const torch::nn::Module& module);

/// Lets programs compute with the slices that `rank` has of the parameters in
/// `splits`, and adds the parameters whose gradients must then be summed.
/// Throws ConfigError if a program needs more.
void divide_programs(
    const DividedPrograms& programs,
    const ParameterTable& table,
    int num_ranks,
    int rank,
    std::vector<SplitParameter>& splits);

}  // namespace accelerate::detail
