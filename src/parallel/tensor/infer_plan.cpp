#include <accelerate/tensor_parallel.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <typeinfo>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>

#include <accelerate/detail/divided_program.h>
#include <accelerate/error.h>
#include <accelerate/parallel_layers.h>

#include "base/text/text.h"
#include "modules/module_tree.h"
#include "modules/name_pattern.h"
#include "parallel/tensor/divide_sequences.h"
#include "parallel/tensor/elementwise.h"

namespace accelerate {

namespace {

using detail::format;
using detail::is_elementwise;
namespace nn = torch::nn;

// The last layer of a feed-forward block, and the layers that produce its
// input, as common models name them.
struct FeedForwardNames {
  std::string_view down;
  std::array<std::string_view, 2> up;
};

constexpr FeedForwardNames kFeedForwards[] = {
    {"down_proj", {"up_proj", "gate_proj"}},
    {"down", {"up", "gate"}},
    {"w2", {"w1", "w3"}},
    {"wo", {"wi", {}}},
    {"wo", {"wi_0", "wi_1"}},
    {"fc2", {"fc1", {}}},
    {"linear2", {"linear1", {}}},
    {"lin2", {"lin1", {}}},
    {"fc_out", {"fc_in", {}}},
    {"c_proj", {"c_fc", {}}},
    {"dense_4h_to_h", {"dense_h_to_4h", {}}},
};

// Embedding tables smaller than the largest one by this factor are for
// positions or types, where a sum over ranks costs more than it saves.
constexpr std::int64_t kSmallTable = 8;

template <class... Types>
bool is_one_of_types(const nn::Module& module) {
  return ((module.as<Types>() != nullptr) || ...);
}

// Whether a Transformer layer's activation is one of LibTorch's own.
template <class Layer>
bool has_known_activation(const Layer& layer) {
  return !std::holds_alternative<std::function<at::Tensor(const at::Tensor&)>>(
      layer.options.activation());
}

// Decides on the modules of one model, starting with known structures.
class PlanInference {
 public:
  PlanInference(const nn::Module& root, int num_ranks) : num_ranks_(num_ranks) {
    entries_.push_back({"", &root, {}, {}, {}, false});
    for (const auto& item : root.named_modules({}, /*include_self=*/false)) {
      keep_alive_.push_back(item.value());
      entries_.push_back({item.key(), item.value().get(), {}, {}, {}, false});
    }
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      by_name_.emplace(entries_[i].name, i);
      for (const auto& item : own_parameters(i))
        users_[item.value().unsafeGetTensorImpl()].push_back(i);
    }
  }

  InferredPlan infer() {
    for (std::size_t i = 0; i < entries_.size(); ++i) divide_program(i);
    for (std::size_t i = 0; i < entries_.size(); ++i) divide_structure(i);
    for (std::size_t i = 0; i < entries_.size(); ++i) divide_names(i);
    for (std::size_t i = 0; i < entries_.size(); ++i) divide_leaf(i);
    InferredPlan result;
    for (const Entry& entry : entries_) {
      if (!entry.is_decided) continue;
      result.decisions.push_back({entry.name, entry.style, entry.why});
      if (entry.style) result.plan.emplace_back(entry.name, *entry.style);
    }
    return result;
  }

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
    const auto found =
        by_name_.find(detail::dotted_name(entries_[parent].name, name));
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

  // The other module that uses a parameter of this one; null if there is none.
  const Entry* sharer_of(const Entry& entry) const {
    for (const auto& item : entry.module->named_parameters(/*recurse=*/false)) {
      for (const std::size_t user :
           users_.at(item.value().unsafeGetTensorImpl())) {
        if (&entries_[user] != &entry) return &entries_[user];
      }
    }
    return nullptr;
  }

  // Why a layer cannot be split along dimension `dim` of its weight; empty if
  // it can.
  std::string obstacle_to(const Entry& entry, std::int64_t dim) const {
    if (const Entry* const other = sharer_of(entry))
      return format("\"{}\" uses its weight as well", other->name);
    const at::Tensor& weight = linear_of(entry)->weight;
    if (weight.size(dim) >= num_ranks_) return {};
    return format(
        "{} {} are fewer than {} ranks",
        weight.size(dim),
        dim == 0 ? "outputs" : "inputs",
        num_ranks_);
  }

  bool can_split(const Entry* entry, std::int64_t dim) const {
    return entry != nullptr && !entry->is_decided &&
        linear_of(*entry) != nullptr && obstacle_to(*entry, dim).empty();
  }

  // Splits `ups` over their outputs, and `down`, which takes them, over its
  // inputs.
  void divide_pair(
      std::span<Entry* const> ups,
      Entry& down,
      const std::string& structure) {
    for (Entry* const up : ups) {
      decide(
          *up,
          ColwiseParallel{},
          format("{} takes its outputs one by one: {}", down.name, structure));
    }
    decide(down, RowwiseParallel{}, format("takes slices of {}", ups[0]->name));
  }

  // A program's own plan decides on all of its modules.
  void divide_program(std::size_t i) {
    const auto* const program =
        dynamic_cast<const detail::DividedProgram*>(entries_[i].module);
    if (program == nullptr) return;
    const ParallelizePlan plan = program->own_plan();
    const std::string& root = entries_[i].name;
    const std::string prefix = root.empty() ? root : root + ".";
    for (std::size_t j = i + 1; j < entries_.size(); ++j) {
      Entry& entry = entries_[j];
      if (!entry.name.starts_with(prefix)) break;
      if (own_parameters(j).is_empty()) continue;
      const std::string name = entry.name.substr(prefix.size());
      const auto found =
          std::find_if(plan.begin(), plan.end(), [&](const auto& each) {
            return detail::matches_name(each.first, name);
          });
      if (found == plan.end()) {
        decide(entry, std::nullopt, "the model's tp_plan leaves it out");
      } else {
        decide(entry, found->second, "the model's tp_plan says so");
      }
    }
  }

  void divide_structure(std::size_t i) {
    const nn::Module& module = *entries_[i].module;
    if (const auto* const layer = dynamic_cast<const ParallelLayer*>(&module)) {
      if (!entries_[i].name.empty())
        decide(entries_[i], layer->parallel_style(), "says so itself");
      return;
    }
    if (module.as<nn::MultiheadAttentionImpl>() != nullptr) {
      divide_attention(i);
    } else if (
        const auto* const layer =
            module.as<nn::TransformerEncoderLayerImpl>()) {
      if (has_known_activation(*layer)) divide_layer(i);
    } else if (
        const auto* const decoder =
            module.as<nn::TransformerDecoderLayerImpl>()) {
      if (has_known_activation(*decoder)) divide_layer(i);
    } else if (module.as<nn::SequentialImpl>() != nullptr) {
      divide_sequential(i);
    }
  }

  void divide_layer(std::size_t i) {
    Entry* const up = child(i, "linear1");
    Entry* const down = child(i, "linear2");
    if (can_split(up, 0) && can_split(down, 1))
      divide_pair(std::array{up}, *down, "the feed-forward of a Transformer");
  }

  // Why the heads of a MultiheadAttention cannot be divided among ranks; empty
  // if they can.
  std::string obstacle_to_heads(const Entry& attention) const {
    const std::int64_t heads =
        attention.module->as<nn::MultiheadAttentionImpl>()->options.num_heads();
    if (heads < num_ranks_)
      return format("{} heads are fewer than {} ranks", heads, num_ranks_);
    // A class derived from it may compute something else.
    return typeid(*attention.module) == typeid(nn::MultiheadAttentionImpl)
        ? std::string()
        : "a class derived from MultiheadAttention may need all heads";
  }

  void divide_attention(std::size_t i) {
    Entry& attention = entries_[i];
    bool has_heads = false;
    // A plan's pattern cannot name the model itself.
    if (attention.name.empty()) {
      return decide(
          attention,
          std::nullopt,
          "is the model itself, which a plan cannot name; put it into a "
          "module");
    }
    if (const Entry* const other = sharer_of(attention)) {
      decide(
          attention,
          std::nullopt,
          format("\"{}\" uses its weights as well", other->name));
    } else if (
        attention.module->as<nn::MultiheadAttentionImpl>()
            ->options.embed_dim() < num_ranks_) {
      decide(
          attention, std::nullopt, "has fewer dimensions than there are ranks");
    } else if (const std::string obstacle = obstacle_to_heads(attention);
               obstacle.empty()) {
      has_heads = true;
      decide(attention, ColwiseParallel{}, "projections, by heads");
    } else if (attention.module->as<nn::MultiheadAttentionImpl>()
                   ->_qkv_same_embed_dim) {
      decide(
          attention,
          ColwiseParallel{.output_layouts = Replicate{}},
          format(
              "projections; {}, so they are gathered, and each rank computes "
              "all heads",
              obstacle));
    } else {
      decide(
          attention,
          std::nullopt,
          format("{}, and its projections are separate", obstacle));
    }
    divide_out_projection(i, has_heads);
  }

  // The last layer of a MultiheadAttention.
  void divide_out_projection(std::size_t i, bool has_heads) {
    Entry* const out = child(i, "out_proj");
    if (out == nullptr || out->is_decided) return;
    // It has a class of its own in some versions of LibTorch.
    const auto* const linear = out->module->as<nn::LinearImpl>();
    if (linear == nullptr) return;
    if (sharer_of(*out) != nullptr || linear->weight.size(1) < num_ranks_) {
      return decide(
          *out,
          std::nullopt,
          "shares its weight, or is smaller than the ranks");
    }
    if (has_heads) {
      const std::int64_t heads = entries_[i]
                                     .module->as<nn::MultiheadAttentionImpl>()
                                     ->options.num_heads();
      return decide(
          *out,
          RowwiseParallel{.num_heads = heads},
          "takes the outputs of heads");
    }
    decide(
        *out,
        RowwiseParallel{.input_layouts = Replicate{}},
        "the last product of attention, whose input every rank has");
  }

  // Pairs of layers with only activations between them.
  void divide_sequential(std::size_t i) {
    Entry* up = nullptr;
    for (const auto& item : entries_[i].module->named_children()) {
      Entry* const layer = child(i, item.key());
      if (layer == nullptr) continue;
      if (linear_of(*layer) == nullptr) {
        if (!is_elementwise(*layer->module)) up = nullptr;
        continue;
      }
      if (up != nullptr && can_split(layer, 1)) {
        divide_pair(std::array{up}, *layer, "only activations are between");
        up = nullptr;
      } else {
        up = can_split(layer, 0) ? layer : nullptr;
      }
    }
  }

  // Feed-forward blocks in modules of other classes, recognized only by names
  // and shapes.
  void divide_names(std::size_t i) {
    // Those that can be divided have already been.
    if (is_one_of_types<
            nn::TransformerEncoderLayerImpl,
            nn::TransformerDecoderLayerImpl>(*entries_[i].module))
      return;
    for (const FeedForwardNames& names : kFeedForwards) {
      Entry* const down = child(i, names.down);
      if (!can_split(down, 1)) continue;
      const at::Tensor& weight = linear_of(*down)->weight;
      const std::int64_t width = weight.size(0), hidden = weight.size(1);
      std::vector<Entry*> ups;
      bool fits = hidden > width;
      for (const std::string_view name : names.up) {
        Entry* const up = child(i, name);
        if (up == nullptr) continue;
        fits = fits && can_split(up, 0) &&
            linear_of(*up)->weight.sizes() == at::IntArrayRef({hidden, width});
        ups.push_back(up);
      }
      if (ups.empty() || !fits || has_other_user(i, *down, ups, hidden))
        continue;
      divide_pair(ups, *down, "names and shapes of a feed-forward block");
    }
  }

  // Whether anything else in module `i` may work on the hidden dimension.
  bool has_other_user(
      std::size_t i,
      const Entry& down,
      std::span<Entry* const> ups,
      std::int64_t hidden) {
    const auto has_dimension = [&](const nn::Module& module, bool recurse) {
      for (const at::Tensor& parameter : module.parameters(recurse)) {
        const auto sizes = parameter.sizes();
        if (std::find(sizes.begin(), sizes.end(), hidden) != sizes.end())
          return true;
      }
      return false;
    };
    if (has_dimension(*entries_[i].module, false)) return true;
    for (const auto& item : entries_[i].module->named_children()) {
      const Entry* const other = child(i, item.key());
      const bool is_in_block = other == &down ||
          std::find(ups.begin(), ups.end(), other) != ups.end();
      if (!is_in_block && has_dimension(*item.value(), true)) return true;
    }
    return false;
  }

  // Number of rows of the largest embedding table.
  std::int64_t largest_table() const {
    std::int64_t rows = 0;
    for (const Entry& entry : entries_) {
      if (const auto* const table = entry.module->as<nn::EmbeddingImpl>())
        rows = std::max(rows, table->weight.size(0));
    }
    return rows;
  }

  void divide_leaf(std::size_t i) {
    Entry& entry = entries_[i];
    if (entry.is_decided || own_parameters(i).is_empty()) return;
    if (entry.name.empty()) {
      return decide(
          entry, std::nullopt, "is the model itself, which a plan cannot name");
    }
    if (entry.module->as<nn::EmbeddingImpl>() != nullptr)
      return divide_embedding(entry);
    if (linear_of(entry) == nullptr) {
      return decide(
          entry,
          std::nullopt,
          format(
              "{} is neither a linear layer nor an embedding",
              entry.module->name()));
    }
    if (const Entry* const other = sharer_of(entry);
        other != nullptr && other->module->as<nn::EmbeddingImpl>() != nullptr) {
      return decide(
          entry,
          std::nullopt,
          format(
              "follows the embedding \"{}\", whose weight it uses",
              other->name));
    }
    if (std::string obstacle = obstacle_to(entry, 0); !obstacle.empty())
      return decide(entry, std::nullopt, std::move(obstacle));
    decide(
        entry,
        ColwiseParallel{.output_layouts = Replicate{}},
        "gathered, since what follows is not known");
  }

  // Whether some other user of the table does more than multiply by it, as a
  // last layer does.
  bool is_shared_otherwise(const Entry& entry) const {
    const auto& table = entry.module->as<nn::EmbeddingImpl>()->weight;
    return std::any_of(
        users_.at(table.unsafeGetTensorImpl()).begin(),
        users_.at(table.unsafeGetTensorImpl()).end(),
        [&](std::size_t user) {
          return &entries_[user] != &entry &&
              linear_of(entries_[user]) == nullptr;
        });
  }

  void divide_embedding(Entry& entry) {
    const auto& table = *entry.module->as<nn::EmbeddingImpl>();
    const std::int64_t rows = table.weight.size(0);
    const std::int64_t largest = largest_table();
    if (typeid(*entry.module) != typeid(nn::EmbeddingImpl)) {
      decide(entry, std::nullopt, "is a class of its own");
    } else if (table.options.max_norm() || table.options.scale_grad_by_freq()) {
      decide(
          entry,
          std::nullopt,
          "has max_norm or scale_grad_by_freq, which need the full table");
    } else if (is_shared_otherwise(entry)) {
      decide(
          entry,
          std::nullopt,
          format("\"{}\" uses its weight as well", sharer_of(entry)->name));
    } else if (rows < num_ranks_) {
      decide(
          entry,
          std::nullopt,
          format("{} rows are fewer than {} ranks", rows, num_ranks_));
    } else if (rows * kSmallTable < largest) {
      decide(
          entry,
          std::nullopt,
          format("{} rows are few beside a table of {}", rows, largest));
    } else {
      decide(
          entry, RowwiseParallel{}, "vocabulary: each rank looks up its rows");
    }
  }

  int num_ranks_;
  std::vector<Entry> entries_;
  std::vector<std::shared_ptr<nn::Module>> keep_alive_;
  std::map<std::string, std::size_t> by_name_;
  /// The entries that have a parameter.
  std::map<const c10::TensorImpl*, std::vector<std::size_t>> users_;
};

// Updates decisions to match a plan in which layers were changed.
void take_styles(InferredPlan& inferred) {
  for (PlanDecision& decision : inferred.decisions) {
    for (const auto& [name, style] : inferred.plan) {
      if (name != decision.module || decision.style == style) continue;
      decision.style = style;
      decision.why += decision.why.empty() ? "" : "; ";
      decision.why += "on slices of the sequence";
    }
  }
}

}  // namespace

InferredPlan infer_parallelize_plan(
    const torch::nn::Module& module,
    int num_ranks,
    bool sequence_parallel) {
  if (num_ranks < 1) {
    throw ConfigError(format(
        "[parallel] infer_parallelize_plan() was given {} ranks; give 1 or "
        "more",
        num_ranks));
  }
  InferredPlan inferred = PlanInference(module, num_ranks).infer();
  if (sequence_parallel && detail::divide_sequences(module, inferred.plan))
    take_styles(inferred);
  return inferred;
}

}  // namespace accelerate
