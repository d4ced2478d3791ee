#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/world.h>

#include "gate/added_products.h"
#include "parallel/tensor/split_keeper.h"
#include "parallel/tensor/split_layers.h"
#include "params/parameter_table.h"

namespace accelerate::detail {

/// A layer that a plan divides, and to whose results a keeper adds products
/// (adapters).
struct DividedAddition {
  std::shared_ptr<AddedProducts> keeper;
  std::size_t unit = 0;
  /// The weight's row in the table.
  std::string weight;
  AddedDivision division = AddedDivision::none;
};

/// Whether the tensor is watched, but only by keepers that add products to
/// layers.
bool has_only_added_products(const at::Tensor& tensor);

/// Finds layers with added products among `splits`, and adds the splits of
/// their keepers' matrices: of a layer whose outputs are divided, those of the second
/// matrices; of one whose inputs are, those of the first. Throws ConfigError
/// with all layers whose products cannot be added to slices.
std::vector<DividedAddition> divide_additions(
    const ParameterTable& table,
    std::vector<SplitParameter>& splits);

/// Lets keepers add to what this rank computes, once it has its slices.
void start_additions(
    const std::vector<DividedAddition>& additions,
    const ParameterTable& table,
    const Group& group,
    const std::shared_ptr<const SplitKeeper>& keeper);

}  // namespace accelerate::detail
