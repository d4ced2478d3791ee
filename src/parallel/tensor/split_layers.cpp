#include "parallel/tensor/split_layers.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>

#include <accelerate/error.h>
#include <accelerate/parallel_layers.h>

#include "base/text.h"
#include "modules/name_pattern.h"

namespace accelerate::detail {

namespace {

bool is_replicated(const TensorPlacement& placement) {
  return std::holds_alternative<accelerate::Replicate>(placement);
}

bool is_last_dim(const TensorPlacement& placement) {
  const auto* const shard = std::get_if<accelerate::Shard>(&placement);
  return shard != nullptr && shard->dim == -1;
}

// Collects what the styles of modules mean for their parameters.
class SplitPlanner {
 public:
  SplitPlanner(const ParameterTable& table, int num_ranks)
      : table_(table), num_ranks_(num_ranks) {}

  void add(
      const std::string& name,
      const torch::nn::Module& module,
      const ParallelStyle& style) {
    name_ = name;
    module_ = &module;
    const std::size_t before = num_parameters_ + complaints_.size();
    std::visit([this](const auto& each) { apply(each); }, style);
    if (num_parameters_ + complaints_.size() == before) {
      complain(
          "has no weight to split; match a linear layer, an embedding or a "
          "norm, or leave it out of the plan");
    }
  }

  void complain(std::string_view what) {
    complaints_.push_back(format("[parallel] \"{}\" {}", name_, what));
  }

  /// Everything that was added. Throws ConfigError with all complaints.
  std::vector<SplitParameter> finish() {
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    std::vector<SplitParameter> splits;
    for (const auto& each : splits_) {
      // A layer that shares the table may have a style of its own.
      const auto tied =
          std::find_if(tied_.begin(), tied_.end(), [&](const auto& embedding) {
            return embedding.first == each->name;
          });
      if (tied != tied_.end() && !each->product) each->product = tied->second;
      splits.push_back(*each);
    }
    return splits;
  }

  void complain_of_pattern(
      const std::string& pattern,
      const std::vector<std::string>& names) {
    const std::optional<std::string> near = nearest(pattern, names);
    complaints_.push_back(format(
        "[parallel] the pattern \"{}\" of parallelize_plan matches no "
        "module{}; the model has {}",
        pattern,
        near ? format(" (is \"{}\" meant?)", *near) : std::string(),
        names.empty() ? std::string("no modules") : join(names, ", ")));
  }

 private:
  void apply(const ColwiseParallel& style) {
    if (!is_replicated(style.output_layouts) &&
        !is_last_dim(style.output_layouts)) {
      return complain(
          "is ColwiseParallel with output_layouts of another dimension than "
          "the last; give Shard{-1} or Replicate{}");
    }
    if (module_->as<torch::nn::EmbeddingImpl>() != nullptr) {
      require_usual_embedding();
      SplitParameter* const weight = take("weight", 1);
      if (weight == nullptr) return;
      tied_.emplace_back(
          weight->name,
          SplitProduct{true, accelerate::Replicate{}, accelerate::Replicate{}});
      return assign(
          *weight,
          weight->embedding,
          SplitEmbedding{false, style.output_layouts});
    }
    SplitProduct product{false, style.input_layouts, style.output_layouts};
    if (module_->as<torch::nn::MultiheadAttentionImpl>() != nullptr) {
      if (style.num_heads != 0 || !style.projections.empty()) {
        return complain(
            "is a MultiheadAttention, which is not divided by heads; leave out "
            "num_heads and projections");
      }
      return split_attention(product);
    }
    if (!style.projections.empty() && style.num_heads == 0)
      return complain("has projections without num_heads; give both");
    SplitParameter* const weight = take("weight", 0);
    if (weight == nullptr) return;
    assign(*weight, weight->product, product);
    // Beside gathered results the bias stays whole, and is added to them; they
    // are complete however rows are divided.
    if (is_replicated(style.output_layouts)) return;
    const std::int64_t outputs =
        table_.find(weight->name)->layout.global_shape.front();
    if (style.num_heads != 0)
      require_heads(style.num_heads, style.projections, outputs);
    SplitParameter* const bias = take("bias", 0);
    for (SplitParameter* const split : {weight, bias}) {
      if (split == nullptr) continue;
      split->num_heads = style.num_heads;
      split->projections = style.projections;
    }
  }

  void apply(const RowwiseParallel& style) {
    if (!is_replicated(style.input_layouts) &&
        !is_last_dim(style.input_layouts)) {
      return complain(
          "is RowwiseParallel with input_layouts of another dimension than the "
          "last; give Shard{-1} or Replicate{}");
    }
    if (module_->as<torch::nn::EmbeddingImpl>() != nullptr) {
      require_usual_embedding();
      SplitParameter* const weight = take("weight", 0);
      if (weight == nullptr) return;
      tied_.emplace_back(
          weight->name,
          SplitProduct{false, accelerate::Replicate{}, style.logits_layouts});
      return assign(
          *weight,
          weight->embedding,
          SplitEmbedding{true, style.output_layouts});
    }
    if (module_->as<torch::nn::MultiheadAttentionImpl>() != nullptr) {
      return complain(
          "is a MultiheadAttention and cannot be RowwiseParallel; give it "
          "ColwiseParallel with output_layouts Replicate{}, and its out_proj "
          "RowwiseParallel");
    }
    SplitParameter* const weight = take("weight", 1);
    if (weight == nullptr) return;
    if (style.num_heads != 0) {
      if (is_replicated(style.input_layouts)) {
        return complain(
            "has num_heads, but slices its input itself (input_layouts "
            "Replicate); leave one of them out");
      }
      require_heads(
          style.num_heads,
          {},
          table_.find(weight->name)->layout.global_shape.back());
      weight->num_heads = style.num_heads;
    }
    assign(
        *weight,
        weight->product,
        SplitProduct{true, style.input_layouts, style.output_layouts});
    // The bias is added to a slice of the results: of columns, or of the
    // sequence.
    if (is_last_dim(style.output_layouts)) {
      take("bias", 0);
    } else if (!is_replicated(style.output_layouts)) {
      share("bias");
    }
  }

  void apply(const SequenceParallel&) {
    for (const auto& item : module_->named_parameters(/*recurse=*/false))
      share(item.key());
  }

  // Complains unless heads can be divided among the ranks.
  void require_heads(
      std::int64_t heads,
      const std::vector<std::int64_t>& projections,
      std::int64_t size) {
    if (heads < num_ranks_) {
      return complain(format(
          "has {} heads, which cannot be divided over {} ranks; give a number "
          "of heads that is at least theirs, or leave it out and gather "
          "results "
          "(output_layouts Replicate)",
          heads,
          num_ranks_));
    }
    const std::vector<std::int64_t> parts =
        projections.empty() ? std::vector<std::int64_t>{size} : projections;
    std::int64_t sum = 0;
    for (const std::int64_t part : parts) {
      sum += part;
      if (part > 0 && part % heads == 0) continue;
      complain(format(
          "has {} indices in a projection, which {} heads do not divide",
          part,
          heads));
    }
    if (sum == size) return;
    complain(format(
        "has projections {}, which add up to {}, but {} outputs",
        at::IntArrayRef(parts),
        sum,
        size));
  }

  void split_attention(const SplitProduct& product) {
    if (!is_replicated(product.output)) {
      return complain(
          "is a MultiheadAttention, whose code needs all heads; give "
          "output_layouts Replicate{}");
    }
    for (const char* const key :
         {"in_proj_weight",
          "q_proj_weight",
          "k_proj_weight",
          "v_proj_weight"}) {
      SplitParameter* const weight = take(key, 0);
      if (weight != nullptr) assign(*weight, weight->product, product);
    }
  }

  void require_usual_embedding() {
    const auto& options = module_->as<torch::nn::EmbeddingImpl>()->options;
    if (options.max_norm() || options.scale_grad_by_freq()) {
      complain(
          "is an embedding with max_norm or scale_grad_by_freq, which need the "
          "full table; leave it out of the plan");
    }
  }

  // The entry of the module's parameter `key`; null if there is none.
  SplitParameter* entry(const std::string& key) {
    const auto parameters = module_->named_parameters(/*recurse=*/false);
    const at::Tensor* const tensor = parameters.find(key);
    const Parameter* const row = tensor == nullptr || !tensor->defined()
        ? nullptr
        : table_.find(*tensor);
    if (row == nullptr) return nullptr;
    ++num_parameters_;
    for (const auto& each : splits_) {
      if (each->name == row->name) return each.get();
    }
    splits_.push_back(std::make_unique<SplitParameter>(
        SplitParameter{.name = row->name, .module = name_}));
    return splits_.back().get();
  }

  // Splits a parameter along `dim`.
  SplitParameter* take(const std::string& key, std::int64_t dim) {
    SplitParameter* const split = entry(key);
    if (split == nullptr) return nullptr;
    const at::IntArrayRef shape = table_.find(split->name)->layout.global_shape;
    if (static_cast<std::int64_t>(shape.size()) <= dim || shape.size() > 2) {
      complain(format(
          "has a {} of shape {}; only matrices and their biases are split",
          key,
          shape));
    } else if (shape[static_cast<std::size_t>(dim)] < num_ranks_) {
      complain(format(
          "has a {} of shape {}, which cannot be split along dimension {} over "
          "{} ranks",
          key,
          shape,
          dim,
          num_ranks_));
    } else if (split->sums_gradient || (split->dim && *split->dim != dim)) {
      complain(format(
          "splits \"{}\" otherwise than \"{}\", which shares it; give both "
          "modules styles that split the same dimension",
          split->name,
          split->module));
    }
    split->dim = dim;
    return split;
  }

  // Leaves a parameter whole, with a gradient that is summed.
  void share(const std::string& key) {
    SplitParameter* const split = entry(key);
    if (split == nullptr) return;
    if (split->dim) {
      complain(format(
          "leaves \"{}\" whole, which \"{}\" splits; give both the same style",
          split->name,
          split->module));
    }
    split->sums_gradient = true;
  }

  template <class Use>
  void assign(
      const SplitParameter& split,
      std::optional<Use>& use,
      const Use& wanted) {
    if (use && *use != wanted) {
      complain(format(
          "uses \"{}\" in another way than \"{}\", which shares it; give both "
          "the same style",
          split.name,
          split.module));
    }
    use = wanted;
  }

  const ParameterTable& table_;
  int num_ranks_;
  std::string name_;
  const torch::nn::Module* module_ = nullptr;
  std::size_t num_parameters_ = 0;
  std::vector<std::unique_ptr<SplitParameter>> splits_;
  /// Tables of embeddings, and how one that is also the last layer is
  /// multiplied by.
  std::vector<std::pair<std::string, SplitProduct>> tied_;
  std::vector<std::string> complaints_;
};

}  // namespace

std::vector<std::int64_t>
begins_of(const SplitParameter& split, std::int64_t size, int num_ranks) {
  if (split.num_heads == 0) return slice_begins(size, num_ranks);
  std::vector<std::int64_t> begins = slice_begins(split.num_heads, num_ranks);
  for (std::int64_t& begin : begins) begin *= size / split.num_heads;
  return begins;
}

std::vector<std::vector<IndexRange>> rows_by_head(
    const SplitParameter& split,
    int num_ranks) {
  const std::vector<std::int64_t> heads =
      slice_begins(split.num_heads, num_ranks);
  std::vector<std::vector<IndexRange>> rows(
      static_cast<std::size_t>(num_ranks));
  std::int64_t begin = 0;
  for (const std::int64_t size : split.projections) {
    const std::int64_t head_size = size / split.num_heads;
    for (std::size_t rank = 0; rank < rows.size(); ++rank) {
      rows[rank].emplace_back(
          begin + heads[rank] * head_size, begin + heads[rank + 1] * head_size);
    }
    begin += size;
  }
  return rows;
}

std::vector<SplitParameter> plan_splits(
    const torch::nn::Module& module,
    const ParameterTable& table,
    const ParallelizePlan& plan,
    int num_ranks) {
  SplitPlanner planner(table, num_ranks);
  std::vector<bool> is_matched(plan.size(), false);
  std::vector<std::string> names;
  if (const auto* const layer = dynamic_cast<const ParallelLayer*>(&module))
    planner.add("(model)", module, layer->parallel_style());
  for (const auto& item :
       module.named_modules(std::string(), /*include_self=*/false)) {
    names.push_back(item.key());
    bool is_taken = false;
    for (std::size_t i = 0; i < plan.size(); ++i) {
      if (!matches_name(plan[i].first, item.key())) continue;
      is_matched[i] = true;
      if (!is_taken) planner.add(item.key(), *item.value(), plan[i].second);
      is_taken = true;
    }
    const auto* const layer =
        dynamic_cast<const ParallelLayer*>(item.value().get());
    if (layer != nullptr && !is_taken)
      planner.add(item.key(), *item.value(), layer->parallel_style());
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (!is_matched[i]) planner.complain_of_pattern(plan[i].first, names);
  }
  return planner.finish();
}

}  // namespace accelerate::detail
