#pragma once

#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <accelerate/pipeline_layers.h>

namespace accelerate::detail {

/// A backward in two halves, of which the second may come much later: gradients
/// of a stage's inputs, which other stages wait for, and gradients of its
/// parameters, which nobody does (Qi et al., "Zero Bubble Pipeline
/// Parallelism", 2023). Nothing is computed twice: a node that both halves need,
/// a linear layer's say, computes one of its products in each, from the gradient
/// that the first half left there. What only inputs need is freed after the
/// first half.
///
/// It works on autograd's graph, so it knows no kinds of layers. A node that
/// computes both gradients at once whatever is asked of it (a
/// torch::autograd::Function that does not look at needs_input_grad) runs twice.
class SplitBackward {
 public:
  /// `gradients` are those of `roots`, undefined for a root that is a scalar
  /// and where the backward begins.
  SplitBackward(
      const PipelineTensors& roots,
      const PipelineTensors& gradients,
      const PipelineTensors& inputs);

  /// Whether the first half has anything to compute.
  [[nodiscard]] bool has_inputs() const { return !input_roots_.empty(); }
  /// The first half. Returns the gradients of the inputs, undefined where
  /// nothing depends on one. Called once.
  PipelineTensors compute_inputs();
  /// The second half: accumulates the gradients of parameters. Called once,
  /// after compute_inputs() if that has anything to compute.
  void compute_weights();

 private:
  using Node = torch::autograd::Node;
  using Edges = std::vector<torch::autograd::Edge>;

  void find_paths(const Edges& roots);
  [[nodiscard]] bool leads_to_inputs(const torch::autograd::Edge& edge) const;
  [[nodiscard]] Edges find_boundary() const;
  void cut(const Edges& boundary);

  Edges inputs_;
  Edges input_roots_;
  PipelineTensors input_gradients_;
  /// Where the second half begins.
  Edges weight_roots_;
  PipelineTensors weight_gradients_;
  /// For every node of the graph, whether it leads to an input.
  std::unordered_map<const Node*, bool> leads_;
};

}  // namespace accelerate::detail
