#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace accelerate {

/// How prepared loaders divide the sequences of their batches among the ranks
/// along `context`: each rank gets its positions of the same samples, after the
/// batch is moved to the device. Attention still needs a scope:
/// `maybe_context_parallel({}, {}, {}, {.sequence_length = n})` with the same
/// cut, where n is the length before the loader's padding.
///
/// With one rank along `context`, batches stay whole. The loop throws
/// ConfigError if a batch has more or fewer tensors than `dims`, or sequences
/// of different lengths, or a length that does not divide among the ranks when
/// there are no `pad_values`.
struct BatchSequences {
  /// The dimension of the sequence of each tensor of a batch, in the order of
  /// visit_tensors(); unset for tensors without one, which all ranks get whole.
  /// Empty: batches stay whole, whatever the accelerator's default is.
  std::vector<std::optional<std::int64_t>> dims = {};
  /// What each tensor is padded with if the length does not divide, one value
  /// per entry of `dims`: for labels the loss's ignore_index (-100).
  std::vector<double> pad_values = {};
  /// True: SequenceCut::contiguous, false: SequenceCut::zigzag.
  bool contiguous = false;
};

}  // namespace accelerate
