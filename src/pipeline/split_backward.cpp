#include "pipeline/split_backward.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

namespace accelerate::detail {

using torch::autograd::Edge;
using torch::autograd::Engine;

SplitBackward::SplitBackward(
    const PipelineTensors& roots,
    const PipelineTensors& gradients,
    const PipelineTensors& inputs) {
  for (const at::Tensor& input : inputs) {
    inputs_.push_back(torch::autograd::impl::gradient_edge(input));
    leads_[inputs_.back().function.get()] = true;
  }
  Edges edges;
  for (const at::Tensor& root : roots)
    edges.push_back(torch::autograd::impl::gradient_edge(root));
  find_paths(edges);
  for (std::size_t i = 0; i < edges.size(); ++i) {
    const at::Tensor gradient =
        gradients[i].defined() ? gradients[i] : at::ones_like(roots[i]);
    const bool is_for_inputs = leads_to_inputs(edges[i]);
    (is_for_inputs ? input_roots_ : weight_roots_).push_back(edges[i]);
    (is_for_inputs ? input_gradients_ : weight_gradients_).push_back(gradient);
  }
}

// Iterative, since graphs are as deep as models.
void SplitBackward::find_paths(const Edges& roots) {
  struct Visit {
    const Node* node;
    std::size_t next_edge = 0;
  };
  std::vector<Visit> open;
  const auto enter = [&](const Edge& edge) {
    if (edge.is_valid() &&
        leads_.try_emplace(edge.function.get(), false).second)
      open.push_back({edge.function.get()});
  };
  for (const Edge& root : roots) {
    enter(root);
    while (!open.empty()) {
      Visit& visit = open.back();
      const auto& edges = visit.node->next_edges();
      if (visit.next_edge < edges.size()) {
        enter(edges[visit.next_edge++]);
        continue;
      }
      if (std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
            return leads_to_inputs(edge);
          })) {
        leads_[visit.node] = true;
      }
      open.pop_back();
    }
  }
}

bool SplitBackward::leads_to_inputs(const Edge& edge) const {
  return edge.is_valid() && leads_.at(edge.function.get());
}

// Every edge into nodes that lead both to inputs and to something else.
SplitBackward::Edges SplitBackward::find_boundary() const {
  Edges boundary;
  std::unordered_map<const Node*, bool> seen;
  Edges open = input_roots_;
  while (!open.empty()) {
    const Edge edge = std::move(open.back());
    open.pop_back();
    Node& node = *edge.function;
    if (!seen.try_emplace(&node, true).second) continue;
    bool has_other = false;
    for (const Edge& next : node.next_edges()) {
      if (leads_to_inputs(next)) {
        open.push_back(next);
      } else {
        has_other = has_other || next.is_valid();
      }
    }
    if (!has_other) continue;
    for (std::uint32_t i = 0; i < node.num_inputs(); ++i)
      boundary.emplace_back(edge.function, i);
  }
  return boundary;
}

// Cuts the boundary's nodes off from the inputs, so that autograd computes only
// their other gradients.
void SplitBackward::cut(const Edges& boundary) {
  for (const Edge& edge : boundary) {
    // set_next_edge() refuses nodes that others lead to.
    for (Edge& next : edge.function->next_edges()) {
      if (leads_to_inputs(next)) next = Edge();
    }
  }
}

PipelineTensors SplitBackward::compute_inputs() {
  const Edges boundary = find_boundary();
  Edges wanted = inputs_;
  wanted.insert(wanted.end(), boundary.begin(), boundary.end());
  PipelineTensors found = Engine::get_default_engine().execute(
      input_roots_,
      input_gradients_,
      /*keep_graph=*/true,
      /*create_graph=*/false,
      /*accumulate_grad=*/false,
      wanted);
  cut(boundary);
  for (std::size_t i = 0; i < boundary.size(); ++i) {
    at::Tensor& gradient = found[inputs_.size() + i];
    if (!gradient.defined()) continue;
    weight_roots_.push_back(boundary[i]);
    weight_gradients_.push_back(std::move(gradient));
  }
  found.resize(inputs_.size());
  // Frees the nodes that nothing else holds, and their saved tensors.
  input_roots_.clear();
  input_gradients_.clear();
  inputs_.clear();
  leads_.clear();
  return found;
}

void SplitBackward::compute_weights() {
  if (weight_roots_.empty()) return;
  Engine::get_default_engine().execute(
      std::exchange(weight_roots_, {}),
      std::exchange(weight_gradients_, {}),
      /*keep_graph=*/false,
      /*create_graph=*/false,
      /*accumulate_grad=*/true);
}

}  // namespace accelerate::detail
