#include "data/loading/dispatch.h"

#include <algorithm>

#include <ATen/Functions.h>

#include <accelerate/detail/object_bytes.h>
#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

std::string describe(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<std::int64_t>> lines;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) {
      lines.push_back({-1});
      continue;
    }
    std::vector<std::int64_t> line{
        static_cast<std::int64_t>(tensor.scalar_type())};
    line.insert(line.end(), tensor.sizes().begin(), tensor.sizes().end());
    lines.push_back(std::move(line));
  }
  return object_to_bytes(lines);
}

std::vector<at::Tensor> make_described(const std::string& bytes) {
  std::vector<std::vector<std::int64_t>> lines;
  object_from_bytes(bytes, lines);
  std::vector<at::Tensor> tensors;
  for (const auto& line : lines) {
    tensors.push_back(
        line.at(0) < 0 ? at::Tensor()
                       : at::empty(
                             at::IntArrayRef(line).slice(1),
                             at::TensorOptions().dtype(
                                 static_cast<at::ScalarType>(line[0]))));
  }
  return tensors;
}

// Throws on a rank that left its pass, or stays in it, while rank 0 did not.
// Otherwise it would mistake another round's samples for its own.
void require_same_round(
    const RoundHeader& mine,
    std::int64_t pass,
    std::int64_t round) {
  if (mine.pass == pass && mine.round == round) return;
  throw Error(format(
      "[data] this rank waits for batch {} of pass {} over a loader that rank "
      "0 reads for all (dispatch_batches), but rank 0 sends batch {} of pass "
      "{}: one of them left the loop early; leave it on all ranks after the "
      "same batch, for instance by Accelerator::set_trigger() and "
      "check_trigger()",
      mine.round,
      mine.pass,
      round,
      pass));
}

// Rows [begin, end).
struct RowRange {
  std::int64_t begin;
  std::int64_t end;
};

// The ranges of a first round of `fill` rows that stand for rows [begin, end)
// of a round that has `rows`.
std::vector<RowRange> ranges_to_fill(
    std::int64_t rows,
    std::int64_t fill,
    std::int64_t begin,
    std::int64_t end) {
  std::vector<RowRange> ranges;
  for (std::int64_t i = std::max(begin, rows); i < end && fill > 0;) {
    const std::int64_t from = (i - rows) % fill;
    const std::int64_t count = std::min(fill - from, end - i);
    ranges.push_back({from, from + count});
    i += count;
  }
  return ranges;
}

// Cuts `range` out of `slice`, a copy of a round, and appends those of `fills`,
// copies of the first round. Throws ConfigError, with the place, for a tensor or
// list that does not have one row per sample.
void cut_round(
    const NestedParts& slice,
    const RowRange& range,
    const std::vector<std::pair<NestedParts, RowRange>>& fills) {
  const auto cut = [](const NestedParts& parts, const RowRange& rows) {
    require_rows(
        "[data] dispatch_batches",
        parts,
        rows_of_round(parts),
        /*checks_tensors=*/true);
    cut_rows(parts, rows.begin, rows.end);
  };
  cut(slice, range);
  std::vector<NestedParts> all{slice};
  for (const auto& [parts, rows] : fills) {
    cut(parts, rows);
    all.push_back(parts);
  }
  if (!fills.empty()) join_parts(all, {.keeps_first_values = true});
}

}  // namespace

RoundSlice pack_slice(const NestedParts& parts) {
  if (parts.num_unvisited_bytes > 0) {
    throw ConfigError(format(
        "[data] dispatch_batches would lose {} bytes of members that the "
        "visit_tensors() of a batch type{} does not visit; visit lists, "
        "numbers and strings as well: accelerate::visit_tensors(batch.texts, "
        "visitor)",
        parts.num_unvisited_bytes,
        parts.unvisited_place.empty() ? "" : " at " + parts.unvisited_place));
  }
  RoundSlice slice{
      pack_bytes({pack_bytes(parts.structure), leaves_to_bytes(parts)}), {}};
  for (const at::Tensor* const tensor : parts.tensors)
    slice.tensors.push_back(*tensor);
  return slice;
}

namespace {

// The sizes and keys, and the lists and values, as bytes.
std::vector<std::string> fields_of(const RoundSlice& slice) {
  std::vector<std::string> fields = unpack_bytes(slice.structure);
  if (fields.size() != 2) throw_wrong_size(fields.size(), 2);
  return fields;
}

}  // namespace

std::vector<std::string> structure_of(const RoundSlice& slice) {
  return unpack_bytes(fields_of(slice)[0]);
}

void unpack_slice(const RoundSlice& slice, const NestedParts& parts) {
  if (parts.tensors.size() != slice.tensors.size()) {
    throw ConfigError(format(
        "[data] dispatch_batches sent a batch of {} tensors, but a "
        "default-constructed one has {}: a batch type of your own must have a "
        "fixed number of tensors, or visit containers of them with "
        "accelerate::visit_tensors(batch.tensors, visitor)",
        slice.tensors.size(),
        parts.tensors.size()));
  }
  for (std::size_t i = 0; i < parts.tensors.size(); ++i)
    *parts.tensors[i] = slice.tensors[i];
  leaves_from_bytes(fields_of(slice)[1], parts);
}

std::int64_t rows_of_round(const NestedParts& round) {
  return rows_of(round).value_or(0);
}

namespace {

RoundSlice
slice_filled(LoadedBatch& round, LoadedBatch& first, const RowRange& wanted) {
  const std::int64_t rows = rows_of_round(round.parts());
  const std::int64_t fill = rows_of_round(first.parts());
  std::vector<std::unique_ptr<LoadedBatch>> copies;
  std::vector<std::pair<NestedParts, RowRange>> fills;
  for (const RowRange& range :
       ranges_to_fill(rows, fill, wanted.begin, wanted.end)) {
    copies.push_back(first.copy());
    fills.emplace_back(copies.back()->parts(), range);
  }
  const std::unique_ptr<LoadedBatch> slice = round.copy();
  const NestedParts parts = slice->parts();
  cut_round(
      parts, {std::min(wanted.begin, rows), std::min(wanted.end, rows)}, fills);
  return pack_slice(slice->parts());
}

}  // namespace

std::vector<RoundSlice> slices_of_round(
    const LoaderDataset& dataset,
    LoadedBatch& round,
    LoadedBatch& first,
    const LoaderContext& context) {
  const std::int64_t rows = rows_of_round(round.parts());
  const std::int64_t share =
      (rows + context.batch_count - 1) / context.batch_count;
  std::vector<RoundSlice> slices;
  for (const int batch_rank : context.batch_ranks) {
    const std::int64_t begin = batch_rank * share;
    const auto own = dataset.slice(round, begin, begin + share);
    slices.push_back(
        own ? pack_slice(own->parts())
            : slice_filled(round, first, {begin, begin + share}));
  }
  return slices;
}

std::unique_ptr<LoadedBatch> received_batch(
    const LoaderDataset& dataset,
    const RoundSlice& slice) {
  std::unique_ptr<LoadedBatch> batch = dataset.new_batch();
  batch->restore(structure_of(slice));
  unpack_slice(slice, batch->parts());
  return batch;
}

RoundSlice scatter_round(
    const Group& group,
    RoundHeader& header,
    const std::vector<RoundSlice>& slices) {
  const bool is_sender = group.rank() == 0;
  std::vector<std::string> messages;
  if (is_sender) {
    for (int rank = 0; rank < group.size(); ++rank) {
      const RoundSlice nothing;
      const RoundSlice& slice =
          slices.empty() ? nothing : slices[static_cast<std::size_t>(rank)];
      messages.push_back(pack_bytes(
          {object_to_bytes(header.pass),
           object_to_bytes(header.round),
           object_to_bytes(header.has_batch),
           object_to_bytes(header.is_last),
           object_to_bytes(header.rows),
           header.error,
           object_to_bytes(header.is_data_error),
           slice.structure,
           describe(slice.tensors)}));
    }
  }
  const std::vector<std::string> fields =
      unpack_bytes(group.scatter_bytes(messages, 0));
  if (fields.size() != 9) throw_wrong_size(fields.size(), 9);
  std::int64_t pass = 0, round = 0;
  object_from_bytes(fields[0], pass);
  object_from_bytes(fields[1], round);
  require_same_round(header, pass, round);
  object_from_bytes(fields[2], header.has_batch);
  object_from_bytes(fields[3], header.is_last);
  object_from_bytes(fields[4], header.rows);
  header.error = fields[5];
  object_from_bytes(fields[6], header.is_data_error);
  if (!header.error.empty() && !is_sender) {
    const std::string message = format(
        "[data] rank 0, which reads for all ranks, failed: {}", header.error);
    if (header.is_data_error) throw DataError(message);
    throw Error(message);
  }
  RoundSlice mine{fields[7], make_described(fields[8])};
  for (std::size_t i = 0; i < mine.tensors.size(); ++i) {
    if (!mine.tensors[i].defined()) continue;
    std::vector<at::Tensor> pieces;
    for (const RoundSlice& slice : slices)
      pieces.push_back(slice.tensors.at(i).contiguous());
    group.scatter(mine.tensors[i], pieces, 0);
  }
  return mine;
}

}  // namespace accelerate::detail
