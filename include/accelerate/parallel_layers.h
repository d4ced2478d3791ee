#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <accelerate/export.h>
#include <accelerate/tensor_parallel.h>

namespace accelerate {

/// A layer that itself defines how tensor parallelism splits it: no plan needs
/// to name it, though a pattern of a plan that matches it takes precedence. A
/// program's modules can derive from it in addition to torch::nn::Module; they
/// must have the weights of a linear layer or an embedding.
///
/// With `ParallelOptions::tensor` above 1, pass an empty `parallelize_plan` if
/// nothing else is to be split.
class ACCELERATE_API ParallelLayer {
 public:
  ParallelLayer() = default;
  ParallelLayer(const ParallelLayer&) = default;
  ParallelLayer& operator=(const ParallelLayer&) = default;
  virtual ~ParallelLayer();

  /// How the layer is split where `tensor` is above 1.
  [[nodiscard]] virtual ParallelStyle parallel_style() const = 0;
};

/// A linear layer whose outputs are split over the tensor-parallel ranks once
/// it is prepared; until then, and in one process, it behaves like
/// torch::nn::Linear.
///
/// Weights are initialised in full, like those of torch::nn::Linear, and taken
/// from rank 0, so they do not depend on the number of ranks; with
/// init_empty_weights() or init_model(), they never need memory in full.
class ACCELERATE_API ColumnParallelLinearImpl : public torch::nn::LinearImpl,
                                                public ParallelLayer {
 public:
  ColumnParallelLinearImpl(
      std::int64_t in_features,
      std::int64_t out_features,
      ColwiseParallel style = {});
  explicit ColumnParallelLinearImpl(
      const torch::nn::LinearOptions& linear_options,
      ColwiseParallel style = {});

  [[nodiscard]] ParallelStyle parallel_style() const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  ColwiseParallel style_;
};

/// The module holder of ColumnParallelLinearImpl.
class ColumnParallelLinear
    : public torch::nn::ModuleHolder<ColumnParallelLinearImpl> {
 public:
  using torch::nn::ModuleHolder<ColumnParallelLinearImpl>::ModuleHolder;
  using Impl = ColumnParallelLinearImpl;
};

/// Like ColumnParallelLinear, but its inputs are split: it takes what a
/// ColumnParallelLinear returns, and sums the results of all ranks.
class ACCELERATE_API RowParallelLinearImpl : public torch::nn::LinearImpl,
                                             public ParallelLayer {
 public:
  RowParallelLinearImpl(
      std::int64_t in_features,
      std::int64_t out_features,
      RowwiseParallel style = {});
  explicit RowParallelLinearImpl(
      const torch::nn::LinearOptions& linear_options,
      RowwiseParallel style = {});

  [[nodiscard]] ParallelStyle parallel_style() const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  RowwiseParallel style_;
};

/// The module holder of RowParallelLinearImpl.
class RowParallelLinear
    : public torch::nn::ModuleHolder<RowParallelLinearImpl> {
 public:
  using torch::nn::ModuleHolder<RowParallelLinearImpl>::ModuleHolder;
  using Impl = RowParallelLinearImpl;
};

/// An embedding whose rows are split over the tensor-parallel ranks once it is
/// prepared, initialised like torch::nn::Embedding. Its weight can also be that
/// of the last layer; `logits_layouts` of the style describes those logits. Not
/// with max_norm or scale_grad_by_freq.
class ACCELERATE_API VocabParallelEmbeddingImpl
    : public torch::nn::EmbeddingImpl,
      public ParallelLayer {
 public:
  VocabParallelEmbeddingImpl(
      std::int64_t num_embeddings,
      std::int64_t embedding_dim,
      RowwiseParallel style = {});
  explicit VocabParallelEmbeddingImpl(
      const torch::nn::EmbeddingOptions& embedding_options,
      RowwiseParallel style = {});

  [[nodiscard]] ParallelStyle parallel_style() const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  RowwiseParallel style_;
};

/// The module holder of VocabParallelEmbeddingImpl.
class VocabParallelEmbedding
    : public torch::nn::ModuleHolder<VocabParallelEmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<VocabParallelEmbeddingImpl>::ModuleHolder;
  using Impl = VocabParallelEmbeddingImpl;
};

}  // namespace accelerate
