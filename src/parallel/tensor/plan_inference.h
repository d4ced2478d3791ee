#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <accelerate/tensor_parallel.h>

#include "modules/module_tree.h"

namespace accelerate::detail {

namespace nn = torch::nn;

/// Decides on the modules of one model, starting with known structures.
class PlanInference {
 public:
  PlanInference(const nn::Module& root, int num_ranks);

  InferredPlan infer();

 private:
  struct Entry {
    std::string name;
    const nn::Module* module = nullptr;
    std::optional<ParallelStyle> style;
    std::string why;
    /// Why a layer of a known structure cannot have a style.
    std::string obstacle;
    bool is_decided = false;
  };

  torch::OrderedDict<std::string, at::Tensor> own_parameters(
      std::size_t i) const {
    return entries_[i].module->named_parameters(/*recurse=*/false);
  }

  Entry* child(std::size_t parent, std::string_view name) {
    if (name.empty()) return nullptr;
    const auto found = by_name_.find(dotted_name(entries_[parent].name, name));
    return found == by_name_.end() ? nullptr : &entries_[found->second];
  }

  static const nn::LinearImpl* linear_of(const Entry& entry) {
    // A class derived from it may compute something else.
    return typeid(*entry.module) == typeid(nn::LinearImpl)
        ? entry.module->as<nn::LinearImpl>()
        : nullptr;
  }

  void
  decide(Entry& entry, std::optional<ParallelStyle> style, std::string why) {
    entry.style = std::move(style);
    entry.why = std::move(why);
    entry.is_decided = true;
  }

  /// The other module that uses a parameter of this one; null if there is none.
  const Entry* sharer_of(const Entry& entry) const;
  /// Why a layer cannot be split along dimension `dim` of its weight; empty if
  /// it can.
  std::string obstacle_to(const Entry& entry, std::int64_t dim) const;
  bool can_split(const Entry* entry, std::int64_t dim) const {
    return entry != nullptr && !entry->is_decided &&
        linear_of(*entry) != nullptr && obstacle_to(*entry, dim).empty();
  }

  /// Splits `ups` over their outputs, and `down`, which takes them, over its
  /// inputs.
  void divide_pair(
      std::span<Entry* const> ups,
      Entry& down,
      const std::string& structure);

  /// A program's own plan decides on all of its modules.
  void divide_program(std::size_t i);
  void divide_structure(std::size_t i);
  void divide_layer(std::size_t i);
  /// Why the heads of a MultiheadAttention cannot be divided among ranks; empty
  /// if they can.
  std::string obstacle_to_heads(const Entry& attention) const;
  void divide_attention(std::size_t i);
  /// The last layer of a MultiheadAttention.
  void divide_out_projection(std::size_t i, bool has_heads);
  /// Pairs of layers with only activations between them.
  void divide_sequential(std::size_t i);
  /// Feed-forward blocks in modules of other classes, recognized only by names
  /// and shapes.
  void divide_names(std::size_t i);
  /// Whether anything else in module `i` may work on the hidden dimension.
  bool has_other_user(
      std::size_t i,
      const Entry& down,
      std::span<Entry* const> ups,
      std::int64_t hidden);
  /// Number of rows of the largest embedding table.
  std::int64_t largest_table() const;
  void divide_leaf(std::size_t i);
  /// Whether some other user of the table does more than multiply by it, as a
  /// last layer does.
  bool is_shared_otherwise(const Entry& entry) const;
  void divide_embedding(Entry& entry);

  int num_ranks_;
  std::vector<Entry> entries_;
  std::vector<std::shared_ptr<nn::Module>> keep_alive_;
  std::map<std::string, std::size_t> by_name_;
  /// The entries that have a parameter.
  std::map<const c10::TensorImpl*, std::vector<std::size_t>> users_;
};

}  // namespace accelerate::detail
