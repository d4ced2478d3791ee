#pragma once

#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <accelerate/pipeline_layers.h>

namespace accelerate::detail {

/// A backward in two halves, the second of which can run much later: the
/// gradients of a stage's inputs, which other stages wait for, and the
/// gradients of its parameters, which no stage waits for (Qi et al., "Zero
/// Bubble Pipeline Parallelism", 2023). Nothing is computed twice: a node that
/// both halves need, such as a linear layer's, computes one of its products in
/// each, from the gradient that the first half left there. Tensors that only
/// the input gradients need are freed after the first half.
///
/// It works on autograd's graph, so it does not depend on kinds of layers. A
/// node that always computes both gradients at once (a
/// torch::autograd::Function that ignores needs_input_grad) runs twice.
class SplitBackward {
 public:
  /// `gradients` are those of `roots`; undefined for a scalar root at which the
  /// backward begins.
  SplitBackward(
      const PipelineTensors& roots,
      const PipelineTensors& gradients,
      const PipelineTensors& inputs);

  /// Whether the first half has anything to compute.
  [[nodiscard]] bool has_inputs() const { return !input_roots_.empty(); }
  /// The first half. Returns the gradients of the inputs; undefined if nothing
  /// depends on an input. Called once.
  PipelineTensors compute_inputs();
  /// The second half: accumulates the gradients of parameters. Called once,
  /// after compute_inputs() if has_inputs().
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
  /// Whether each node of the graph leads to an input.
  std::unordered_map<const Node*, bool> leads_;
};

}  // namespace accelerate::detail
