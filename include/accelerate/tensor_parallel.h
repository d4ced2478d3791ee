#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <accelerate/export.h>

namespace torch::nn {
class Module;
}

namespace accelerate {

// How tensor parallelism (ParallelOptions::tensor) splits the layers of an
// unmodified model. Names are those of torch.distributed.tensor.parallel.

/// Every tensor-parallel rank has the full tensor.
struct Replicate {
  bool operator==(const Replicate&) const = default;
};

/// Each tensor-parallel rank has a slice along `dim`, which counts from the end
/// if negative. Of n indices, rank r of R has those from floor(n r / R) to
/// floor(n (r + 1) / R).
struct Shard {
  /// The dimension that is sliced.
  int dim = -1;
  bool operator==(const Shard&) const = default;
};

/// The layout of a tensor that enters or leaves a layer.
using TensorPlacement = std::variant<Replicate, Shard>;

/// Splits a linear layer over its outputs, an embedding over its columns, or a
/// convolution over its output channels; so each rank computes a slice of the
/// last dimension, or of the channels.
///
/// Convolutions (Conv1d, Conv2d, Conv3d) must have `groups` 1. For them,
/// Shard{-1} and Shard{1} both mean the channels, the only dimension that can
/// be split.
///
/// A MultiheadAttention is split by heads: each rank has the rows of its heads
/// of `in_proj_weight` and `in_proj_bias`, and computes their attention; give
/// its `out_proj` a RowwiseParallel. Projections of keys or values of another
/// width (`kdim`, `vdim`) stay whole, and each rank computes its rows. The
/// module's results and masks are those of one process; reading the attention
/// weights that it returns is collective. With `input_layouts` Shard{0}, it
/// takes slices of the sequence and gathers their positions; with
/// `output_layouts` Shard{0}, its `out_proj` then returns slices. With fewer
/// heads than ranks, give it `output_layouts` Replicate, and its `out_proj`
/// `input_layouts` Replicate: projections are gathered, and each rank computes
/// all heads.
struct ColwiseParallel {
  /// Layout of the layer's input. Shard: it is gathered first.
  TensorPlacement input_layouts = Replicate{};
  /// Layout of the layer's output: Shard{-1}, or Replicate, which gathers it.
  TensorPlacement output_layouts = Shard{-1};
  /// Number of attention heads among the outputs; none is split, so each rank
  /// computes some of them. With grouped queries, the number of heads of keys
  /// and values, for the layer of queries as well. 0: a slice can begin at any
  /// output.
  std::int64_t num_heads = 0;
  /// Widths of the projections that one layer computes one after another, such
  /// as {width, width, width} for queries, keys and values: each rank computes
  /// its heads of each, so code that divides the result in the same way, and
  /// takes the number of heads from its size, works on slices. A rank's weight
  /// has its rows of the first projection, then those of the second, and so on.
  /// Needs num_heads. Empty: one projection.
  std::vector<std::int64_t> projections = {};
  bool operator==(const ColwiseParallel&) const = default;
};

/// Splits a linear layer over its inputs, or a convolution over its input
/// channels, so that results are summed over the ranks, and the bias is added
/// once, after the sum; or an embedding over its rows, the vocabulary.
///
/// For convolutions, see ColwiseParallel.
///
/// If an embedding's weight is also that of the last layer (a tied product with
/// the transposed weight), `logits_layouts` describes the logits.
struct RowwiseParallel {
  /// Layout of a linear layer's input: Shard{-1}, as a ColwiseParallel returns
  /// it; Replicate, from which it takes its slice; or Shard of another
  /// dimension, which it gathers first. Without effect on an embedding, which
  /// takes the indices as they are.
  TensorPlacement input_layouts = Shard{-1};
  /// Layout of the layer's output: Replicate, or Shard of the sequence
  /// dimension for a SequenceParallel layer that follows.
  TensorPlacement output_layouts = Replicate{};
  /// Number of attention heads that the inputs belong to, as in the
  /// ColwiseParallel layers before it. 0: slices are even.
  std::int64_t num_heads = 0;
  /// Layout of a tied product's result: Replicate, or Shard{-1}.
  TensorPlacement logits_layouts = Replicate{};
  bool operator==(const RowwiseParallel&) const = default;
};

/// Leaves a layer (a norm) whole and lets it work on slices of the sequence,
/// each rank on its own: gradients of its parameters are summed over the ranks.
/// The slices come from a RowwiseParallel that returns Shard{d}, and go to a
/// ColwiseParallel that takes Shard{d}.
struct SequenceParallel {
  bool operator==(const SequenceParallel&) const = default;
};

/// Changes the layout of a module's input: gathered (Shard to Replicate),
/// sliced (Replicate to Shard), or sliced along another dimension. Backward
/// does the reverse to the gradient.
///
/// A module's call is detected when it reads its weight, so the module must be
/// one of LibTorch's that read theirs first: Linear, Embedding, a norm, a
/// convolution; or a Sequential that begins with one. The style of a module
/// that is split as well (the first layer of a Sequential) must take the layout
/// desired here. A module that stays whole works on whatever it gets: with
/// slices, the gradients of its parameters are summed over the ranks, and it
/// returns slices. Only Linear, Embedding and LayerNorm, which treat each
/// position independently, can take slices.
struct PrepareModuleInput {
  /// The layout that the code before the module passes.
  TensorPlacement input_layouts = Replicate{};
  /// The layout that the module gets.
  TensorPlacement desired_input_layouts = Replicate{};
  bool operator==(const PrepareModuleInput&) const = default;
};

/// Changes the layout of a module's output, like PrepareModuleInput for its
/// input; of a Sequential, the output of its last layer. With `output_layouts`
/// Shard, the module got slices, and the gradients of its parameters are
/// summed.
struct PrepareModuleOutput {
  /// The layout that the module returns.
  TensorPlacement output_layouts = Replicate{};
  /// The layout that the code after the module gets.
  TensorPlacement desired_output_layouts = Replicate{};
  bool operator==(const PrepareModuleOutput&) const = default;
};

/// PrepareModuleInput and PrepareModuleOutput for one module.
struct PrepareModuleInputOutput {
  /// See PrepareModuleInput.
  TensorPlacement input_layouts = Replicate{};
  /// See PrepareModuleInput.
  TensorPlacement desired_input_layouts = Replicate{};
  /// See PrepareModuleOutput.
  TensorPlacement output_layouts = Replicate{};
  /// See PrepareModuleOutput.
  TensorPlacement desired_output_layouts = Replicate{};
  bool operator==(const PrepareModuleInputOutput&) const = default;
};

/// What tensor parallelism does with one module.
using ParallelStyle = std::variant<
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    PrepareModuleInputOutput>;

/// Which modules are split, and how: patterns of dotted module names, as
/// named_modules() gives them, each with a style. In a pattern, `*` and `?`
/// stand for characters of one part of a name, as in PyTorch's
/// parallelize_module, and a part `**` for any number of parts. A module takes
/// the style of the first pattern that matches it; modules that match none stay
/// whole, on every rank. prepare() throws ConfigError for a pattern that
/// matches nothing.
///
///     {{"blocks.*.mlp.0", ColwiseParallel{}},
///      {"blocks.*.mlp.2", RowwiseParallel{}}}
using ParallelizePlan = std::vector<std::pair<std::string, ParallelStyle>>;

/// What infer_parallelize_plan() does with one module, and why.
struct PlanDecision {
  std::string module;                                 ///< its dotted name
  std::optional<ParallelStyle> style = std::nullopt;  ///< unset: stays whole
  /// The reason, as a sentence.
  std::string why;
};

/// A plan made from a model's structure.
struct InferredPlan {
  /// What ParallelizePlan takes, with exact names.
  ParallelizePlan plan;
  /// One per module with parameters of its own, in the order of
  /// named_modules().
  std::vector<PlanDecision> decisions;

  /// The decisions as text, a line per module.
  [[nodiscard]] ACCELERATE_API std::string explain() const;
};

/// Infers a plan from a model's structure, for `num_ranks` tensor-parallel
/// ranks. Results are those of one process whatever the model's forward does
/// with its layers, as long as it calls them.
///
/// Pairs of linear layers that need no exchange between them are found where
/// the structure shows them: in TransformerEncoderLayer and
/// TransformerDecoderLayer, in a Sequential with only activations and dropout
/// between, and in feed-forward blocks of well-known names and shapes
/// (`gate_proj`, `up_proj`, `down_proj`; `fc1`, `fc2`; ...), where only
/// elementwise operators are expected between the layers. MultiheadAttention is
/// split by heads, unless it has fewer heads than ranks. Other linear layers
/// gather their results. Embeddings are split over their rows, except those
/// with a small fraction of the largest one's (positions). Layers that have
/// fewer indices than ranks, or share their weights with anything but an
/// embedding, classes derived from Linear, and all other modules stay whole.
///
/// `sequence_parallel`: norms and dropout work on slices of the sequence where
/// the structure shows that nothing else sees them: from the norm before the
/// feed-forward to the norm after it in TransformerEncoderLayer and
/// TransformerDecoderLayer, around self-attention between the layers of
/// TransformerEncoder and TransformerDecoder, and in a Sequential between two
/// pairs of layers. Each rank then keeps a slice of the activations there; the
/// number of bytes sent does not change.
///
/// The result can be edited before it is passed to ParallelOptions. It is the
/// same on all ranks for the same model; the call is not collective. The module
/// is only read, and can be on the meta device. Throws ConfigError for fewer
/// than one rank.
[[nodiscard]] ACCELERATE_API InferredPlan infer_parallelize_plan(
    const torch::nn::Module& module,
    int num_ranks = 1,
    bool sequence_parallel = false);

}  // namespace accelerate
