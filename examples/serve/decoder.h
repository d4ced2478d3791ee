#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accelerate/exported_model.h>

struct DecoderOptions {
  /// What load_model() reads; empty for the weights in the program's file.
  std::filesystem::path weights = {};
  c10::Device device = c10::kCPU;
};

/// A program of export_decoder_for_cpp() with a cache, whose rows are slots for
/// sequences. Not thread-safe.
class Decoder {
 public:
  /// Throws what load_exported() and load_model() throw, and ConfigError for
  /// another kind of program.
  explicit Decoder(
      const std::filesystem::path& program,
      const DecoderOptions& options = {});

  [[nodiscard]] std::int64_t num_slots() const { return num_slots_; }
  [[nodiscard]] std::int64_t max_length() const { return max_length_; }
  [[nodiscard]] std::int64_t vocabulary_size() const { return num_logits_; }

  /// Puts tokens of one slot behind the `position` tokens that it has. Returns
  /// the logits of the token after them: float [vocabulary_size] on the CPU.
  at::Tensor extend(
      std::int64_t slot,
      std::span<const std::int64_t> tokens,
      std::int64_t position);
  /// Puts one token in each of the first slots, at its position. Returns logits
  /// [slots, vocabulary_size]. A slot that does not take part needs the
  /// position of its next token, which then replaces what is written now.
  at::Tensor step(
      std::span<const std::int64_t> tokens,
      std::span<const std::int64_t> positions);

 private:
  at::Tensor run(
      const at::Tensor& ids,
      const at::Tensor& positions,
      std::int64_t first_slot,
      std::int64_t length);

  accelerate::ExportedModel model_{nullptr};
  c10::Device device_;
  /// Keys and values of each layer: [slots, heads, length, head_dim].
  std::vector<at::Tensor> caches_;
  std::int64_t num_slots_ = 0;
  std::int64_t max_length_ = 0;
  std::int64_t num_logits_ = 0;
};
