#include <accelerate/parallel_layers.h>

#include <ostream>
#include <utility>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

namespace accelerate {

namespace {

// Gives `copy` the values of `layer`'s parameters.
template <class Layer>
std::shared_ptr<torch::nn::Module> with_values_of(
    const Layer& layer,
    std::shared_ptr<Layer> copy,
    const std::optional<torch::Device>& device) {
  const at::NoGradGuard no_grad;
  const auto copies = copy->named_parameters(/*recurse=*/false);
  for (const auto& item : layer.named_parameters(/*recurse=*/false)) {
    const at::Tensor& value = item.value();
    copies[item.key()].set_data(
        device && value.device() != *device ? value.to(*device)
                                            : value.clone());
  }
  return copy;
}

void print_linear(
    std::ostream& stream,
    const char* name,
    const torch::nn::LinearOptions& options) {
  stream << name << "(in_features=" << options.in_features()
         << ", out_features=" << options.out_features()
         << ", bias=" << (options.bias() ? "true" : "false") << ")";
}

}  // namespace

ParallelLayer::~ParallelLayer() = default;

ColumnParallelLinearImpl::ColumnParallelLinearImpl(
    std::int64_t in_features,
    std::int64_t out_features,
    ColwiseParallel style)
    : LinearImpl(in_features, out_features), style_(std::move(style)) {}

ColumnParallelLinearImpl::ColumnParallelLinearImpl(
    const torch::nn::LinearOptions& linear_options,
    ColwiseParallel style)
    : LinearImpl(linear_options), style_(std::move(style)) {}

ParallelStyle ColumnParallelLinearImpl::parallel_style() const {
  return style_;
}

std::shared_ptr<torch::nn::Module> ColumnParallelLinearImpl::clone(
    const std::optional<torch::Device>& device) const {
  return with_values_of(
      *this,
      std::make_shared<ColumnParallelLinearImpl>(options, style_),
      device);
}

void ColumnParallelLinearImpl::pretty_print(std::ostream& stream) const {
  print_linear(stream, "accelerate::ColumnParallelLinear", options);
}

RowParallelLinearImpl::RowParallelLinearImpl(
    std::int64_t in_features,
    std::int64_t out_features,
    RowwiseParallel style)
    : LinearImpl(in_features, out_features), style_(std::move(style)) {}

RowParallelLinearImpl::RowParallelLinearImpl(
    const torch::nn::LinearOptions& linear_options,
    RowwiseParallel style)
    : LinearImpl(linear_options), style_(std::move(style)) {}

ParallelStyle RowParallelLinearImpl::parallel_style() const { return style_; }

std::shared_ptr<torch::nn::Module> RowParallelLinearImpl::clone(
    const std::optional<torch::Device>& device) const {
  return with_values_of(
      *this, std::make_shared<RowParallelLinearImpl>(options, style_), device);
}

void RowParallelLinearImpl::pretty_print(std::ostream& stream) const {
  print_linear(stream, "accelerate::RowParallelLinear", options);
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(
    std::int64_t num_embeddings,
    std::int64_t embedding_dim,
    RowwiseParallel style)
    : EmbeddingImpl(num_embeddings, embedding_dim), style_(std::move(style)) {}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(
    const torch::nn::EmbeddingOptions& embedding_options,
    RowwiseParallel style)
    : EmbeddingImpl(embedding_options), style_(std::move(style)) {}

ParallelStyle VocabParallelEmbeddingImpl::parallel_style() const {
  return style_;
}

std::shared_ptr<torch::nn::Module> VocabParallelEmbeddingImpl::clone(
    const std::optional<torch::Device>& device) const {
  return with_values_of(
      *this,
      std::make_shared<VocabParallelEmbeddingImpl>(options, style_),
      device);
}

void VocabParallelEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "accelerate::VocabParallelEmbedding(num_embeddings="
         << options.num_embeddings()
         << ", embedding_dim=" << options.embedding_dim() << ")";
}

}  // namespace accelerate
