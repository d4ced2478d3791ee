#include <accelerate/pipeline.h>

#include <cstdint>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <accelerate/error.h>

#include "base/require.h"
#include "base/text/text.h"
#include "train/pipeline/pipeline_state.h"

namespace accelerate {

namespace {

using detail::format;
using detail::PipelineValue;

// The token with the largest logit at the last position.
PipelineValue most_likely(const PipelineValue& output) {
  if (output.tensors.size() != 1 || output.tensors[0].dim() != 3) {
    throw ConfigError(format(
        "[pipeline] the last layer must return logits of shape [sequences, "
        "tokens, vocabulary] for generate(), but returned {}; pass a function "
        "that returns the next tokens",
        output.tensors.size() == 1
            ? format("a tensor of shape {}", output.tensors[0].sizes())
            : format("{} tensors", output.tensors.size())));
  }
  return detail::pipeline_value(
      output.tensors[0].select(1, -1).argmax(/*dim=*/-1));
}

void require_tokens(
    const at::Tensor& tokens,
    const PipelineGenerateOptions& options) {
  if (!tokens.defined() || tokens.dim() != 2 || tokens.numel() == 0) {
    throw ConfigError(format(
        "[pipeline] tokens of generate() must have shape [sequences, length], "
        "but have {}",
        tokens.defined() ? format("{}", tokens.sizes())
                         : std::string("an undefined tensor")));
  }
  detail::require_at_least(
      "pipeline", "max_new_tokens", options.max_new_tokens, 0);
}

}  // namespace

at::Tensor Pipeline::generate(
    const at::Tensor& tokens,
    const PipelineGenerateOptions& options) const {
  return generate_tokens(tokens, &most_likely, options);
}

at::Tensor Pipeline::generate_tokens(
    const at::Tensor& tokens,
    PipelineSelect next,
    const PipelineGenerateOptions& options) const {
  require_tokens(tokens, options);
  const at::NoGradGuard no_grad;
  at::Tensor all = tokens;
  at::Tensor given = tokens;
  at::Tensor has_ended = at::zeros(
      {tokens.size(0)}, at::TensorOptions(at::kBool).device(tokens.device()));
  for (std::int64_t i = 0; i < options.max_new_tokens; ++i) {
    const PipelineResult result =
        run({detail::pipeline_value(given),
             {},
             nullptr,
             /*trains=*/false,
             next},
            {.gather_outputs = true, .shapes_may_change = true});
    if (result.outputs.size() != 1 ||
        result.outputs[0].numel() != tokens.size(0)) {
      throw ConfigError(format(
          "[pipeline] the function of generate() must return one token per "
          "sequence, but returned {} for {} sequences",
          result.outputs.size() == 1
              ? format("a tensor of shape {}", result.outputs[0].sizes())
              : format("{} tensors", result.outputs.size()),
          tokens.size(0)));
    }
    at::Tensor chosen = result.outputs[0].reshape({-1}).to(
        tokens.device(), tokens.scalar_type());
    if (options.eos_token_id) {
      chosen = chosen.masked_fill(has_ended, *options.eos_token_id);
      has_ended = has_ended.logical_or(chosen.eq(*options.eos_token_id));
    }
    all = at::cat({all, chosen.unsqueeze(1)}, 1);
    given = options.has_cache ? chosen.unsqueeze(1) : all;
    if (options.eos_token_id && has_ended.all().item<bool>()) break;
  }
  return all;
}

}  // namespace accelerate
