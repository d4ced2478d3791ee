#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/nested_parts.h>
#include <accelerate/detail/object_bytes.h>
#include <accelerate/export.h>
#include <accelerate/nested.h>
#include <accelerate/objects.h>
#include <accelerate/world.h>

/// Distributes slices of batches that rank 0 reads for all (dispatch_batches).
namespace accelerate::detail {

/// A batch that can be sliced by rows and sent.
template <class T>
struct IsObjectList : std::false_type {};
template <class T, class A>
struct IsObjectList<std::vector<T, A>>
    : std::bool_constant<!HoldsTensors<T>::value && Transferable<T>> {};
template <class T>
concept Dispatchable = std::default_initializable<T> &&
    (IsObjectList<T>::value || NestedTensors<T>);

template <Dispatchable Batch>
std::int64_t rows_of_batch(const Batch& batch) {
  if constexpr (IsObjectList<Batch>::value) {
    return static_cast<std::int64_t>(batch.size());
  } else {
    return find_batch_size(batch).value_or(0);
  }
}

/// Rows [begin, end).
struct RowRange {
  std::int64_t begin;
  std::int64_t end;
};
/// Cuts `range` out of `slice`, a copy of a round, and appends those of
/// `fills`, copies of the first round. Throws ConfigError, with the place, for a
/// tensor or list that does not have one row per sample.
ACCELERATE_API void cut_round(
    const NestedParts& slice,
    const RowRange& range,
    const std::vector<std::pair<NestedParts, RowRange>>& fills);
/// The ranges of a first round of `fill` rows that stand for rows [begin, end)
/// of a round that has `rows`.
ACCELERATE_API std::vector<RowRange> ranges_to_fill(
    std::int64_t rows,
    std::int64_t fill,
    std::int64_t begin,
    std::int64_t end);

/// Rows [begin, end) of `batch`. Rows past its end come from `first`, repeated
/// as necessary; other numbers and strings are those of `batch`.
template <Dispatchable Batch>
Batch slice_filled(
    const Batch& batch,
    const Batch& first,
    std::int64_t begin,
    std::int64_t end) {
  const std::int64_t rows = rows_of_batch(batch);
  const std::int64_t fill = rows_of_batch(first);
  if constexpr (IsObjectList<Batch>::value) {
    Batch slice;
    for (std::int64_t i = begin; i < end; ++i) {
      slice.push_back(
          i < rows ? batch[static_cast<std::size_t>(i)]
                   : first[static_cast<std::size_t>((i - rows) % fill)]);
    }
    return slice;
  } else {
    const std::vector<RowRange> ranges = ranges_to_fill(rows, fill, begin, end);
    std::vector<Batch> copies(ranges.size(), first);
    std::vector<std::pair<NestedParts, RowRange>> fills;
    for (std::size_t i = 0; i < ranges.size(); ++i)
      fills.emplace_back(parts_of(copies[i]), ranges[i]);
    Batch slice = batch;
    cut_round(
        parts_of(slice), {std::min(begin, rows), std::min(end, rows)}, fills);
    return slice;
  }
}

/// One rank's slice of a round, with everything needed to rebuild it.
struct RoundSlice {
  /// The sizes, keys, lists and other values.
  std::string structure;
  std::vector<at::Tensor> tensors;
};

/// Throws ConfigError for a user's type with members that it does not visit.
ACCELERATE_API RoundSlice pack_slice(const NestedParts& parts);
/// The sizes and keys in a slice.
ACCELERATE_API std::vector<std::string> structure_of(const RoundSlice& slice);
/// Puts everything else into a value of that structure. Throws ConfigError for
/// a user's type that has another number of tensors when newly constructed.
ACCELERATE_API void unpack_slice(
    const RoundSlice& slice,
    const NestedParts& parts);

template <Dispatchable Batch>
RoundSlice slice_to_send(Batch slice) {
  if constexpr (IsObjectList<Batch>::value) {
    return {object_to_bytes(slice), {}};
  } else {
    return pack_slice(parts_of(slice));
  }
}

template <Dispatchable Batch>
Batch received_batch(const RoundSlice& slice) {
  Batch batch{};
  if constexpr (IsObjectList<Batch>::value) {
    object_from_bytes(slice.structure, batch);
  } else {
    const std::vector<std::string> structure = structure_of(slice);
    visit_tensors(batch, StructureReader(structure));
    unpack_slice(slice, parts_of(batch));
  }
  return batch;
}

/// The description of a round that rank 0 sends before its tensors.
struct RoundHeader {
  /// The pass, and the round within it, that a rank is about to send or
  /// receive, both counted from 0. Given by every rank, since they must agree.
  std::int64_t pass = 0;
  std::int64_t round = 0;
  bool has_batch = false;
  bool is_last = true;
  std::int64_t rows = 0;
  /// Message of rank 0's exception, and whether it was a DataError.
  std::string error = {};
  bool is_data_error = false;
};

/// Sends each rank of `group` its slice from rank 0, the only rank that passes
/// `slices`. All slices must have the same shapes. Returns this rank's slice.
/// Throws rank 0's error on the other ranks, too, and Error on a rank that is
/// in a different round than rank 0.
ACCELERATE_API RoundSlice scatter_round(
    const Group& group,
    RoundHeader& header,
    const std::vector<RoundSlice>& slices);

}  // namespace accelerate::detail
