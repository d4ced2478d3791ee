#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accelerate::detail {

/// Which side of a layer ranks divide, from the view of its added products.
enum class AddedDivision {
  /// Every rank has the layer's input and result in full, whatever part of the
  /// weight it has, and computes added products in full.
  none,
  /// Ranks have the full input and a slice of the result each.
  outputs,
  /// Ranks have a slice of the input each and the full result.
  inputs,
};

/// How products are added to a layer whose weight ranks divide.
struct DividedProducts {
  /// The sizes of this rank's slice of the weight.
  std::vector<std::int64_t> weight_sizes;
  /// Passes the intermediate between a product's two matrices on: sums it, or
  /// its gradient, over the ranks. Null if nothing is divided.
  std::function<at::Tensor(const at::Tensor&)> pass = nullptr;
  /// Drops elements of the layer's input with this probability: the same ones
  /// on all ranks that have the same input.
  std::function<at::Tensor(const at::Tensor&, double)> drop = nullptr;
};

/// A keeper that adds products of two matrices of its own to the results of
/// layers whose weights it watches (adapters). A second base of such keepers.
class AddedProducts {
 public:
  AddedProducts() = default;
  AddedProducts(const AddedProducts&) = delete;
  AddedProducts& operator=(const AddedProducts&) = delete;

  /// The layer of the weight with this number of the watch, and its added
  /// products.
  struct Layer {
    /// Looks up rows instead of multiplying.
    bool is_embedding = false;
    /// Why ranks cannot divide the weight; completes "must". Empty if they can.
    std::string complaint = {};
    /// The matrices of all products: [..., inputs] and [outputs, ...].
    std::vector<at::Tensor> first, second;
  };
  [[nodiscard]] virtual Layer added_to(std::size_t unit) const = 0;
  /// From now on, this rank has a slice of the weight, and of the second
  /// matrices (outputs) or the first ones (inputs).
  virtual void divide(std::size_t unit, DividedProducts how) = 0;
  /// While weights and matrices are full, products are added as before
  /// divide().
  virtual void set_full(bool is_full) = 0;

 protected:
  ~AddedProducts() = default;
};

}  // namespace accelerate::detail
