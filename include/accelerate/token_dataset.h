#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/export.h>

namespace accelerate {

struct TokenDatasetOptions {
  /// Of the files: kUInt16, kUInt32, kInt, kLong, kShort or kByte, in this
  /// machine's byte order.
  at::ScalarType dtype = at::kUInt16;
  /// Tokens of a sample.
  std::int64_t block_size = 1024;
  /// From the first token of a sample to that of the next. Unset: block_size,
  /// so that samples do not overlap.
  std::optional<std::int64_t> stride = std::nullopt;
  /// At the start of each file, passed over.
  std::int64_t header_bytes = 0;
};

/// Samples for a language model from files of nothing but tokens, one after
/// another. A batch is a tuple of two [batch, block_size] kLong tensors: the
/// tokens, and for each the token that follows it. Samples do not cross files;
/// tokens that fill no sample at the end of a file are left out. Files are
/// mapped, so any size starts at once, and must not change meanwhile. Copies
/// share them. Safe to read from several threads.
class ACCELERATE_API TokenDataset {
 public:
  /// Throws Error if a file cannot be read, ConfigError if its size is not a
  /// whole number of tokens, or an option is impossible.
  explicit TokenDataset(
      const std::vector<std::string>& paths,
      const TokenDatasetOptions& options = {});

  [[nodiscard]] std::int64_t size() const;
  /// Of all files, without headers.
  [[nodiscard]] std::int64_t num_tokens() const;
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor> get_batch(
      std::span<const std::int64_t> indices) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace accelerate
