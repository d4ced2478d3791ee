#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/parallel.h>

#include "parallel/strategy.h"
#include "precision/fp8/float8_layer.h"

namespace accelerate::detail {

/// Measures every n-th step: what the casts of float8 layers lose, and how far
/// their products are from bf16 products.
class Float8Figures {
 public:
  /// `interval`: 0 measures nothing.
  Float8Figures(const Mesh& mesh, std::int64_t interval)
      : mesh_(mesh), interval_(interval) {}

  /// Makes layers measure the step that begins, if it is due.
  void begin_step(const Float8Layers& layers);
  /// Ends a step, and begins the next. If the step was measured, this is a
  /// collective: ranks add up their measurements.
  void end_step(const Float8Layers& layers);

  /// Takes the figures of the last measured step: on each rank, those of all
  /// layers of all pipeline stages.
  [[nodiscard]] std::vector<StepFigure> take();

 private:
  [[nodiscard]] at::Tensor numbers_of_ranks(const Float8Layers& layers) const;

  Mesh mesh_;
  std::int64_t interval_;
  std::int64_t num_steps_ = 0;
  bool is_measuring_ = false;
  std::vector<StepFigure> figures_;
};

}  // namespace accelerate::detail
