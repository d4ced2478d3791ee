#include <accelerate/token_collate.h>

#include <algorithm>
#include <numeric>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate {

namespace detail {

namespace {

at::Tensor as_tokens(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() != 1 ||
      !at::isIntegralType(tensor.scalar_type(), false)) {
    throw ConfigError(
        "[data] a sequence of tokens must be a 1-d tensor of integers, but a "
        "sample has something else");
  }
  return tensor.to(at::kLong).contiguous();
}

std::span<const std::int64_t> values(const at::Tensor& tensor) {
  return {
      tensor.const_data_ptr<std::int64_t>(),
      static_cast<std::size_t>(tensor.numel())};
}

}  // namespace

TokenSequence token_sequence(const NestedParts& sample) {
  const std::vector<at::Tensor*>& tensors = sample.tensors;
  if (tensors.empty() || tensors.size() > 2) {
    throw ConfigError(format(
        "[data] a sample must have one tensor of tokens and at most one of "
        "labels, but has {} tensors",
        tensors.size()));
  }
  const std::size_t num_others = sample.lists.size() + sample.values.size();
  if (num_others > 0 || sample.num_unvisited_bytes > 0) {
    throw ConfigError(
        "[data] a sample has lists, numbers or strings beside its tokens, "
        "which a batch of tokens would lose; give the loader a collate "
        "function of your own that calls this one and keeps them");
  }
  TokenSequence sequence{as_tokens(*tensors[0]), as_tokens(*tensors.back())};
  if (sequence.first.numel() != sequence.second.numel()) {
    throw ConfigError(format(
        "[data] a sample must have one label per token, but has {} tokens and "
        "{} labels",
        sequence.first.numel(),
        sequence.second.numel()));
  }
  return sequence;
}

PaddedBatch pad(
    const std::vector<TokenSequence>& sequences,
    const PadCollateOptions& options) {
  const auto count = static_cast<std::int64_t>(sequences.size());
  const auto length_of = [&](const TokenSequence& sequence) {
    return std::min(
        sequence.first.numel(),
        options.max_length.value_or(sequence.first.numel()));
  };
  std::int64_t longest = 0;
  for (const TokenSequence& sequence : sequences) {
    longest = std::max(longest, length_of(sequence));
  }
  const std::int64_t multiple = options.pad_to_multiple_of;
  const std::int64_t width = (longest + multiple - 1) / multiple * multiple;
  PaddedBatch batch{
      at::full({count, width}, options.pad_token_id, at::kLong),
      at::zeros({count, width}, at::kBool),
      at::full({count, width}, kIgnoredLabel, at::kLong),
      at::empty({count}, at::kLong)};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& [tokens, labels] = sequences[static_cast<std::size_t>(i)];
    const std::int64_t length =
        length_of(sequences[static_cast<std::size_t>(i)]);
    const std::int64_t begin =
        i * width + (options.pad_left ? width - length : 0);
    std::copy_n(
        tokens.const_data_ptr<std::int64_t>(),
        length,
        batch.input_ids.mutable_data_ptr<std::int64_t>() + begin);
    std::copy_n(
        labels.const_data_ptr<std::int64_t>(),
        length,
        batch.labels.mutable_data_ptr<std::int64_t>() + begin);
    std::fill_n(
        batch.attention_mask.mutable_data_ptr<bool>() + begin, length, true);
    batch.lengths.mutable_data_ptr<std::int64_t>()[i] = length;
  }
  return batch;
}

namespace {

struct TokenPiece {
  std::span<const std::int64_t> tokens, labels;
};

std::vector<TokenPiece> pieces_of(
    const std::vector<TokenSequence>& sequences,
    const PackCollateOptions& options) {
  using Long = PackCollateOptions::LongSequences;
  const auto room = static_cast<std::size_t>(options.row_length);
  std::vector<TokenPiece> pieces;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto tokens = values(sequences[i].first);
    const auto labels = values(sequences[i].second);
    if (tokens.size() > room && options.long_sequences == Long::refuse) {
      throw ConfigError(format(
          "[data] sequence {} of a batch has {} tokens, but a row has {}; "
          "raise row_length, or set long_sequences to cut or split it",
          i,
          tokens.size(),
          room));
    }
    const std::size_t end = options.long_sequences == Long::split
        ? tokens.size()
        : std::min(tokens.size(), room);
    for (std::size_t begin = 0; begin < end; begin += room) {
      const std::size_t length = std::min(room, end - begin);
      pieces.push_back(
          {tokens.subspan(begin, length), labels.subspan(begin, length)});
    }
  }
  return pieces;
}

// Assigns pieces to rows, the longest first, each to the first row with room.
std::vector<std::vector<TokenPiece>> rows_of(
    std::vector<TokenPiece> pieces,
    std::size_t row_length) {
  // Stable, so pieces of equal length keep their order.
  std::ranges::stable_sort(
      pieces, [](const TokenPiece& a, const TokenPiece& b) {
        return a.tokens.size() > b.tokens.size();
      });
  std::vector<std::vector<TokenPiece>> rows;
  std::vector<std::size_t> room;
  for (const TokenPiece& piece : pieces) {
    const auto fits = [&](std::size_t left) {
      return left >= piece.tokens.size();
    };
    const auto found = std::ranges::find_if(room, fits);
    const auto row = static_cast<std::size_t>(found - room.begin());
    if (found == room.end()) {
      rows.emplace_back();
      room.push_back(row_length);
    }
    rows[row].push_back(piece);
    room[row] -= piece.tokens.size();
  }
  return rows;
}

}  // namespace

PackedBatch pack(
    const std::vector<TokenSequence>& sequences,
    const PackCollateOptions& options) {
  const std::int64_t width = options.row_length;
  const auto rows =
      rows_of(pieces_of(sequences, options), static_cast<std::size_t>(width));
  const auto needed = static_cast<std::int64_t>(rows.size());
  const std::int64_t count = options.num_rows.value_or(needed);
  if (needed > count) {
    throw ConfigError(format(
        "[data] a batch of {} sequences needs {} rows of {} tokens, but "
        "num_rows is {}; raise it, or lower batch_size",
        sequences.size(),
        needed,
        width,
        count));
  }
  PackedBatch batch{
      at::full({count, width}, options.pad_token_id, at::kLong),
      at::zeros({count, width}, at::kBool),
      at::zeros({count, width}, at::kLong),
      at::zeros({count, width}, at::kLong),
      at::full({count, width}, kIgnoredLabel, at::kLong),
      at::Tensor(),
      at::zeros({count}, at::kLong),
      at::zeros({count}, at::kLong)};
  for (std::size_t row = 0; row < rows.size(); ++row) {
    std::int64_t at = static_cast<std::int64_t>(row) * width;
    std::int64_t number = 0;
    for (const TokenPiece& piece : rows[row]) {
      const auto length = static_cast<std::int64_t>(piece.tokens.size());
      std::copy_n(
          piece.tokens.data(),
          length,
          batch.input_ids.mutable_data_ptr<std::int64_t>() + at);
      auto* const labels = batch.labels.mutable_data_ptr<std::int64_t>() + at;
      std::copy_n(piece.labels.data(), length, labels);
      if (options.ignore_first_label) labels[0] = kIgnoredLabel;
      auto* const positions =
          batch.position_ids.mutable_data_ptr<std::int64_t>() + at;
      std::iota(positions, positions + length, std::int64_t{0});
      std::fill_n(
          batch.sequence_ids.mutable_data_ptr<std::int64_t>() + at,
          length,
          ++number);
      std::fill_n(
          batch.attention_mask.mutable_data_ptr<bool>() + at, length, true);
      at += length;
    }
    batch.sequences_in_row.mutable_data_ptr<std::int64_t>()[row] = number;
    batch.tokens_in_row.mutable_data_ptr<std::int64_t>()[row] =
        at - static_cast<std::int64_t>(row) * width;
  }
  batch.loss_mask = batch.labels.ne(kIgnoredLabel);
  return batch;
}

}  // namespace detail

PadCollate::PadCollate(const PadCollateOptions& options) : options_(options) {
  if (options.pad_to_multiple_of < 1 || options.max_length.value_or(1) < 1) {
    throw ConfigError(detail::format(
        "[data] pad_to_multiple_of and max_length of PadCollate must be at "
        "least 1, but are {} and {}",
        options.pad_to_multiple_of,
        options.max_length.value_or(1)));
  }
}

PackCollate::PackCollate(const PackCollateOptions& options)
    : options_(options) {
  if (options.row_length < 1 || options.num_rows.value_or(1) < 1) {
    throw ConfigError(detail::format(
        "[data] row_length and num_rows of PackCollate must be at least 1, but "
        "are {} and {}",
        options.row_length,
        options.num_rows.value_or(1)));
  }
}

namespace {

void require_ids(const at::Tensor& sequence_ids) {
  if (!sequence_ids.defined() || sequence_ids.dim() != 2) {
    throw ConfigError(
        "[data] sequence_ids must be a tensor of [rows, length], as "
        "PackCollate makes it, but is not");
  }
}

}  // namespace

at::Tensor block_attention_mask(
    const at::Tensor& sequence_ids,
    bool is_causal) {
  require_ids(sequence_ids);
  const std::int64_t length = sequence_ids.size(1);
  at::Tensor mask = sequence_ids.unsqueeze(2).eq(sequence_ids.unsqueeze(1));
  mask.logical_and_(sequence_ids.ne(0).unsqueeze(2));
  if (is_causal) mask = mask.tril();
  const at::Tensor self = at::eye(length, mask.options());
  return mask.logical_or_(self).unsqueeze(1);
}

at::Tensor cumulative_lengths(const at::Tensor& sequence_ids) {
  require_ids(sequence_ids);
  if (sequence_ids.numel() == 0)
    return at::zeros({1}, sequence_ids.options().dtype(at::kInt));
  const at::Tensor first = at::ones(
      {sequence_ids.size(0), 1}, sequence_ids.options().dtype(at::kBool));
  const at::Tensor begins = at::cat(
      {first,
       sequence_ids.narrow(1, 1, sequence_ids.size(1) - 1)
           .ne(sequence_ids.narrow(1, 0, sequence_ids.size(1) - 1))},
      1);
  const at::Tensor places = begins.flatten().nonzero().flatten();
  const at::Tensor end = at::full({1}, sequence_ids.numel(), places.options());
  return at::cat({places, end}).to(at::kInt);
}

}  // namespace accelerate
