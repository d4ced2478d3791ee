#include <accelerate/token_dataset.h>

#include <algorithm>
#include <span>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "data/datasets/open_file.h"

namespace accelerate {

using detail::format;

struct TokenDataset::State {
  struct File {
    detail::OpenFile file;
    std::int64_t num_tokens;
    /// Index of the first sample of this file.
    std::int64_t first_sample;
  };
  TokenDatasetOptions options;
  std::int64_t stride;
  std::int64_t width;
  std::vector<File> files = {};
  std::int64_t num_samples = 0;
  std::int64_t num_tokens = 0;

  void add(const std::string& path);
  // Reads `count` tokens of a sample.
  template <class Token>
  void copy(std::int64_t sample, std::int64_t count, std::int64_t* out) const;
};

void TokenDataset::State::add(const std::string& path) {
  detail::OpenFile file(path);
  const auto bytes =
      static_cast<std::int64_t>(file.size()) - options.header_bytes;
  if (bytes < 0 || bytes % width != 0) {
    throw ConfigError(format(
        "[data] {} has {} bytes, which do not divide into a header of {} bytes "
        "and tokens of {} bytes; set dtype or header_bytes",
        path,
        file.size(),
        options.header_bytes,
        width));
  }
  const std::int64_t tokens = bytes / width;
  // A sample needs one more token than a block: the last token's successor.
  const std::int64_t samples = tokens > options.block_size
      ? (tokens - options.block_size - 1) / stride + 1
      : 0;
  files.push_back({std::move(file), tokens, num_samples});
  num_samples += samples;
  num_tokens += tokens;
}

template <class Token>
void TokenDataset::State::copy(
    std::int64_t sample,
    std::int64_t count,
    std::int64_t* out) const {
  const auto after = std::upper_bound(
      files.begin(), files.end(), sample, [](std::int64_t s, const File& file) {
        return s < file.first_sample;
      });
  const File& file = *std::prev(after);
  std::vector<Token> tokens(static_cast<std::size_t>(count));
  file.file.read(
      static_cast<std::uint64_t>(
          options.header_bytes + (sample - file.first_sample) * stride * width),
      std::as_writable_bytes(std::span(tokens)));
  std::ranges::copy(tokens, out);
}

TokenDataset::TokenDataset(
    const std::vector<std::string>& paths,
    const TokenDatasetOptions& options) {
  const bool is_known = options.dtype == at::kUInt16 ||
      options.dtype == at::kUInt32 || options.dtype == at::kInt ||
      options.dtype == at::kLong || options.dtype == at::kShort ||
      options.dtype == at::kByte;
  if (!is_known) {
    throw ConfigError(format(
        "[data] the dtype of a TokenDataset is {}, but must be UInt16, UInt32, "
        "Int, Long, Short or Byte",
        options.dtype));
  }
  const std::int64_t stride = options.stride.value_or(options.block_size);
  if (options.block_size < 1 || stride < 1 || options.header_bytes < 0 ||
      paths.empty()) {
    throw ConfigError(format(
        "[data] a TokenDataset's number of files, block_size and stride must "
        "be at least 1 and header_bytes at least 0, but "
        "they are {}, {}, {} and {}",
        paths.size(),
        options.block_size,
        stride,
        options.header_bytes));
  }
  auto state = std::make_shared<State>(State{
      options,
      stride,
      static_cast<std::int64_t>(c10::elementSize(options.dtype))});
  for (const std::string& path : paths) state->add(path);
  state_ = std::move(state);
}

std::int64_t TokenDataset::size() const { return state_->num_samples; }

std::int64_t TokenDataset::num_tokens() const { return state_->num_tokens; }

std::tuple<at::Tensor, at::Tensor> TokenDataset::get_batch(
    std::span<const std::int64_t> indices) const {
  const State& state = *state_;
  const std::int64_t count = state.options.block_size + 1;
  const auto batch = static_cast<std::int64_t>(indices.size());
  const at::Tensor inputs =
      at::empty({batch, state.options.block_size}, at::kLong);
  const at::Tensor targets = at::empty_like(inputs);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(count));
  auto* input = inputs.mutable_data_ptr<std::int64_t>();
  auto* target = targets.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    if (index < 0 || index >= state.num_samples) {
      throw ConfigError(format(
          "[data] a TokenDataset has {} samples, but no sample {}",
          state.num_samples,
          index));
    }
    switch (state.options.dtype) {
      case at::kUInt16:
        state.copy<std::uint16_t>(index, count, tokens.data());
        break;
      case at::kUInt32:
        state.copy<std::uint32_t>(index, count, tokens.data());
        break;
      case at::kInt:
        state.copy<std::int32_t>(index, count, tokens.data());
        break;
      case at::kLong:
        state.copy<std::int64_t>(index, count, tokens.data());
        break;
      case at::kShort:
        state.copy<std::int16_t>(index, count, tokens.data());
        break;
      default:
        state.copy<std::uint8_t>(index, count, tokens.data());
        break;
    }
    input = std::copy(tokens.begin(), tokens.end() - 1, input);
    target = std::copy(tokens.begin() + 1, tokens.end(), target);
  }
  return {inputs, targets};
}

}  // namespace accelerate
