#include "parallel/tensor/split_planner.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "gate/linear_weight.h"

namespace accelerate::detail {

namespace {

template <class Layer>
bool has_groups(const torch::nn::Module& module) {
  const auto* const layer = module.as<Layer>();
  return layer != nullptr && layer->options.groups() != 1;
}

bool is_embedding(
    const torch::nn::Module& module,
    const DividedPrograms& programs) {
  return module.as<torch::nn::EmbeddingImpl>() != nullptr ||
      is_embedding_of(programs, module);
}

constexpr std::string_view kChannelsOnly =
    "is a convolution, of which only channels are split; use Shard{-1} or "
    "Replicate{}";
constexpr std::string_view kFeaturesOnly =
    "is a Conv1D, which multiplies tokens of all sequences as rows of one "
    "matrix, so only features are split; use Shard{-1} or Replicate{}";

}  // namespace

void SplitPlanner::add(
    const std::string& name,
    const torch::nn::Module& module,
    const ParallelStyle& style) {
  if (const auto* const input = std::get_if<PrepareModuleInput>(&style)) {
    prepare(
        name,
        module,
        LayoutChange{input->input_layouts, input->desired_input_layouts},
        std::nullopt);
  } else if (
      const auto* const output = std::get_if<PrepareModuleOutput>(&style)) {
    prepare(
        name,
        module,
        std::nullopt,
        LayoutChange{output->output_layouts, output->desired_output_layouts});
  } else if (
      const auto* const both = std::get_if<PrepareModuleInputOutput>(&style)) {
    prepare(
        name,
        module,
        LayoutChange{both->input_layouts, both->desired_input_layouts},
        LayoutChange{both->output_layouts, both->desired_output_layouts});
  } else {
    styled_.push_back({name, &module, style});
  }
}

void SplitPlanner::apply_style(const StyledModule& each) {
  layer_ = Layer(each.name, *each.module);
  const std::size_t before = num_parameters_ + complaints_.size();
  std::visit([this](const auto& style) { apply(style); }, each.style);
  if (num_parameters_ + complaints_.size() == before) {
    complain(
        "has no weight to split; match a linear layer, an embedding, a "
        "convolution or a norm, or leave it out of the plan");
  }
}

void SplitPlanner::complain(std::string_view what) {
  complaints_.push_back(format("[parallel] \"{}\" {}", layer_.name, what));
}

std::vector<SplitParameter> SplitPlanner::finish() {
  std::vector<Preparation> separate;
  for (const Preparation& each : preparations_) {
    if (!merge(each)) separate.push_back(each);
  }
  for (const StyledModule& each : styled_) apply_style(each);
  for (const Preparation& each : separate) apply_preparation(each);
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

void SplitPlanner::complain_of_pattern(
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

SplitPlanner::Layer::Layer(
    std::string its_name,
    const torch::nn::Module& its_module)
    : name(std::move(its_name)),
      module(&its_module),
      is_transposed(linear_class_of(its_module) == LinearClass::transposed) {
  namespace nn = torch::nn;
  if (module->as<nn::Conv1dImpl>() != nullptr) num_weight_dims = 3;
  if (module->as<nn::Conv2dImpl>() != nullptr) num_weight_dims = 4;
  if (module->as<nn::Conv3dImpl>() != nullptr) num_weight_dims = 5;
}

bool SplitPlanner::Layer::is_features(const TensorPlacement& placement) const {
  const accelerate::Shard* const slice = slice_in(placement);
  return slice != nullptr && slice->dim == 1 - num_weight_dims;
}

TensorPlacement SplitPlanner::Layer::features_in(
    const TensorPlacement& placement) const {
  const accelerate::Shard* const slice = slice_in(placement);
  if (!is_convolution() || slice == nullptr) return placement;
  if (slice->dim != 1 && slice->dim != -1) return placement;
  // Channels come before the dimensions of the kernel.
  return accelerate::Shard{static_cast<int>(1 - num_weight_dims)};
}

void SplitPlanner::require_one_group() {
  namespace nn = torch::nn;
  const nn::Module& module = *layer_.module;
  if (has_groups<nn::Conv1dImpl>(module) ||
      has_groups<nn::Conv2dImpl>(module) ||
      has_groups<nn::Conv3dImpl>(module)) {
    complain(
        "is a convolution with groups, whose channels tensor parallelism does "
        "not split; leave it out of the plan");
  }
}

void SplitPlanner::split_embedding(
    bool is_vocabulary,
    const TensorPlacement& output,
    const TensorPlacement& logits) {
  // A program's own call has its settings.
  const auto* const embedding = layer_.module->as<torch::nn::EmbeddingImpl>();
  if (embedding != nullptr &&
      (embedding->options.max_norm() ||
       embedding->options.scale_grad_by_freq())) {
    complain(
        "is an embedding with max_norm or scale_grad_by_freq, which need the "
        "full table; leave it out of the plan");
  }
  SplitParameter* const weight = take("weight", is_vocabulary ? 0 : 1);
  if (weight == nullptr) return;
  tied_.emplace_back(
      weight->name,
      SplitProduct{.is_rowwise = !is_vocabulary, .output = logits});
  assign(*weight, weight->embedding, SplitEmbedding{is_vocabulary, output});
}

void SplitPlanner::apply(const ColwiseParallel& style) {
  require_one_group();
  const TensorPlacement output = layer_.features_in(style.output_layouts);
  if (layer_.module->as<torch::nn::MultiheadAttentionImpl>() != nullptr)
    return split_attention(style);
  if (!is_replicated(output) && !layer_.is_features(output)) {
    return complain(
        layer_.is_convolution()
            ? kChannelsOnly
            : "is ColwiseParallel with output_layouts of a dimension other "
              "than the last; use Shard{-1} or Replicate{}");
  }
  if (is_embedding(*layer_.module, programs_))
    return split_embedding(false, style.output_layouts, Replicate{});
  const SplitProduct product{
      .input = layer_.features_in(style.input_layouts),
      .output = output,
      .is_transposed = layer_.is_transposed};
  if (layer_.is_transposed) {
    if (!is_replicated(product.input) && !layer_.is_features(product.input))
      return complain(kFeaturesOnly);
    if (!style.projections.empty()) {
      return complain(
          "is a Conv1D, whose weight is inputs x outputs, but projections are "
          "rows of a weight of outputs x inputs; leave them out and gather its "
          "result (output_layouts Replicate)");
    }
  }
  if (layer_.is_convolution()) {
    if (style.num_heads != 0 || !style.projections.empty())
      return complain("is a convolution; leave out num_heads and projections");
    if (!is_replicated(product.input) && !layer_.is_features(product.input))
      return complain(kChannelsOnly);
  }
  if (!style.projections.empty() && style.num_heads == 0)
    return complain("has projections without num_heads; give both");
  SplitParameter* const weight = take("weight", layer_.is_transposed ? 1 : 0);
  if (weight == nullptr) return;
  assign(*weight, weight->product, product);
  // If results are gathered, the bias stays full and is added to them; they are
  // complete however rows are divided.
  if (is_replicated(output)) return;
  const std::vector<std::int64_t>& shape =
      table_.find(weight->name)->layout.global_shape;
  const std::int64_t outputs =
      layer_.is_transposed ? shape.back() : shape.front();
  if (style.num_heads != 0)
    require_heads(style.num_heads, style.projections, outputs);
  SplitParameter* const bias = take("bias", 0);
  for (SplitParameter* const split : {weight, bias}) {
    if (split == nullptr) continue;
    split->num_heads = style.num_heads;
    split->projections = style.projections;
  }
}

void SplitPlanner::apply(const RowwiseParallel& style) {
  require_one_group();
  const TensorPlacement input = layer_.features_in(style.input_layouts);
  const TensorPlacement output = layer_.features_in(style.output_layouts);
  if (is_embedding(*layer_.module, programs_))
    return split_embedding(true, style.output_layouts, style.logits_layouts);
  if (layer_.is_convolution() && !is_replicated(input) &&
      !layer_.is_features(input))
    return complain(kChannelsOnly);
  if (layer_.module->as<torch::nn::MultiheadAttentionImpl>() != nullptr) {
    return complain(
        "is a MultiheadAttention and cannot be RowwiseParallel; give it "
        "ColwiseParallel, and its out_proj RowwiseParallel");
  }
  if (layer_.is_convolution()) {
    if (style.num_heads != 0)
      return complain("is a convolution; leave out num_heads");
    if (!is_replicated(output) && !layer_.is_features(output))
      return complain(kChannelsOnly);
  }
  if (layer_.is_transposed &&
      ((!is_replicated(input) && !layer_.is_features(input)) ||
       (!is_replicated(output) && !layer_.is_features(output)))) {
    return complain(kFeaturesOnly);
  }
  SplitParameter* const weight = take("weight", layer_.is_transposed ? 0 : 1);
  if (weight == nullptr) return;
  const std::int64_t heads =
      style.num_heads != 0 ? style.num_heads : heads_of_attention();
  if (style.num_heads != 0 && is_replicated(input)) {
    return complain(
        "has num_heads, but slices its input itself (input_layouts "
        "Replicate); leave one of them out");
  }
  if (style.num_heads != 0 || (heads != 0 && layer_.is_features(input))) {
    const std::vector<std::int64_t>& shape =
        table_.find(weight->name)->layout.global_shape;
    require_heads(
        heads, {}, layer_.is_transposed ? shape.front() : shape.back());
    weight->num_heads = heads;
  }
  assign(
      *weight,
      weight->product,
      SplitProduct{
          .is_rowwise = true,
          .input = input,
          .output = output,
          .is_transposed = layer_.is_transposed});
  // The bias is added to a slice of the results: a slice of columns, or of the
  // sequence.
  if (layer_.is_features(output)) {
    take("bias", 0);
  } else if (!is_replicated(output)) {
    share("bias");
  }
}

void SplitPlanner::apply(const SequenceParallel&) {
  for (const auto& item : layer_.module->named_parameters(/*recurse=*/false))
    share(item.key());
}

void SplitPlanner::require_heads(
    std::int64_t heads,
    const std::vector<std::int64_t>& projections,
    std::int64_t size) {
  if (heads < num_ranks_) {
    return complain(format(
        "has {} heads, which cannot be divided over {} ranks; set a number of "
        "heads that is at least theirs, or leave it out and gather results "
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

SplitParameter* SplitPlanner::entry(const std::string& key) {
  const auto parameters = layer_.module->named_parameters(/*recurse=*/false);
  const at::Tensor* const tensor = parameters.find(key);
  const Parameter* const row =
      tensor == nullptr || !tensor->defined() ? nullptr : table_.find(*tensor);
  if (row == nullptr) return nullptr;
  ++num_parameters_;
  for (const auto& each : splits_) {
    if (each->name == row->name) return each.get();
  }
  splits_.push_back(std::make_unique<SplitParameter>(
      SplitParameter{.name = row->name, .module = layer_.name}));
  return splits_.back().get();
}

SplitParameter* SplitPlanner::take(const std::string& key, std::int64_t dim) {
  SplitParameter* const split = entry(key);
  if (split == nullptr) return nullptr;
  const at::IntArrayRef shape = table_.find(split->name)->layout.global_shape;
  const auto num_dims = static_cast<std::int64_t>(shape.size());
  if (num_dims <= dim || num_dims > layer_.num_weight_dims) {
    complain(format(
        "has a {} of shape {}; only linear layers, embeddings and convolutions "
        "(not transposed ones) are split",
        key,
        shape));
  } else if (shape[static_cast<std::size_t>(dim)] < num_ranks_) {
    complain(format(
        "has a {} of shape {}, which cannot be split along "
        "dimension {} over {} ranks",
        key,
        shape,
        dim,
        num_ranks_));
  } else if (split->sums_gradient || (split->dim && *split->dim != dim)) {
    complain(format(
        "splits \"{}\" differently from \"{}\", which shares it; use styles "
        "that split the same dimension for both modules",
        split->name,
        split->module));
  }
  split->dim = dim;
  return split;
}

void SplitPlanner::share(const std::string& key) {
  SplitParameter* const split = entry(key);
  if (split == nullptr) return;
  if (split->dim) {
    complain(format(
        "leaves \"{}\" whole, which \"{}\" splits; use the same style for both",
        split->name,
        split->module));
  }
  split->sums_gradient = true;
}

template <class Use>
void SplitPlanner::assign(
    const SplitParameter& split,
    std::optional<Use>& use,
    const Use& wanted) {
  if (use && *use != wanted) {
    complain(format(
        "uses \"{}\" in another way than \"{}\", which shares it; use the same "
        "style for both",
        split.name,
        split.module));
  }
  use = wanted;
}

// This is what split_attention.cpp calls.
template void SplitPlanner::assign(
    const SplitParameter& split,
    std::optional<SplitProduct>& use,
    const SplitProduct& wanted);

}  // namespace accelerate::detail
