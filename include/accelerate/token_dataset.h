#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace accelerate {

struct TokenDatasetOptions {
  /// The dtype in the files: kUInt16, kUInt32, kInt, kLong, kShort or kByte, in
  /// this machine's byte order.
  at::ScalarType dtype = at::kUInt16;
  /// Number of tokens in a sample.
  std::int64_t block_size = 1024;
  /// Distance from the first token of a sample to that of the next. Below
  /// block_size: more samples, which overlap. Unset: block_size.
  std::optional<std::int64_t> stride = std::nullopt;
  /// Number of bytes to skip at the start of each file.
  std::int64_t header_bytes = 0;
};

/// Samples for a language model from binary files of consecutive tokens. A
/// batch is a tuple of two [batch, block_size] kLong tensors: the tokens, and
/// for each the token that follows it. Samples do not cross files; tokens at
/// the end of a file that do not fill a sample are dropped. Samples are read
/// from the files when they are asked for, so files of any size open instantly;
/// they stay open, and must not change meanwhile: if one has become shorter,
/// get_batch() throws Error. Copies share them. Safe to read from several
/// threads.
class ACCELERATE_API TokenDataset {
 public:
  /// Throws Error if a file cannot be read, ConfigError if its size is not a
  /// multiple of the token size, or an option is invalid.
  explicit TokenDataset(
      const std::vector<std::string>& paths,
      const TokenDatasetOptions& options = {});

  /// Number of samples.
  [[nodiscard]] std::int64_t size() const;
  /// Number of tokens in all files, without headers.
  [[nodiscard]] std::int64_t num_tokens() const;
  /// The tokens of samples, and those that follow them: each [samples,
  /// block_size] kLong.
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor> get_batch(
      std::span<const std::int64_t> indices) const;

 private:
  struct State;
  detail::KeptPtr<const State> state_;
};

}  // namespace accelerate
