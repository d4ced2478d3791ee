#pragma once

#include <cstddef>
#include <vector>

#include "exported/load/loaded_program.h"
#include "exported/stages/graph_values.h"

namespace accelerate::detail {

/// A graph that is divided into consecutive parts, each of which is a graph
/// that gets values from the part before it and returns what later parts need.
/// A number or tensor that only the first part can know passes through all
/// parts up to the last that needs it; masks, rotary embeddings and positions,
/// which depend only on numbers, arguments and constants, are recomputed.
class DividedGraph {
 public:
  /// Borrows `graph`.
  explicit DividedGraph(const BoundGraph& graph)
      : graph_(graph), values_(graph) {}

  [[nodiscard]] const GraphValues& values() const { return values_; }
  /// The instructions from `begin` up to `end`. The first part has the graph's
  /// inputs, the last one its results.
  [[nodiscard]] BoundGraph part(std::size_t begin, std::size_t end) const;

 private:
  struct Chosen;
  struct Part;
  [[nodiscard]] Chosen choose(std::size_t begin, std::size_t end) const;
  [[nodiscard]] std::vector<int> values_before(std::size_t begin) const;
  [[nodiscard]] bool
  returns(std::size_t output, std::size_t begin, std::size_t end) const;
  void add_inputs(
      Part& part,
      const std::vector<bool>& is_read,
      std::size_t begin) const;
  void add_outputs(Part& part, std::size_t begin, std::size_t end) const;
  [[nodiscard]] std::size_t size() const {
    return graph_.code().instructions.size();
  }

  const BoundGraph& graph_;
  GraphValues values_;
};

}  // namespace accelerate::detail
