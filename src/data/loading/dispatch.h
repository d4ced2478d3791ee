#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/dataset_engine.h>
#include <accelerate/detail/loaded_batch.h>
#include <accelerate/detail/nested_parts.h>
#include <accelerate/world.h>

/// Distributes slices of batches that rank 0 reads for all (dispatch_batches).
namespace accelerate::detail {

/// One rank's slice of a round, with everything needed to rebuild it.
struct RoundSlice {
  /// The sizes, keys, lists and other values.
  std::string structure;
  std::vector<at::Tensor> tensors;
};

/// Throws ConfigError for a user's type with members that it does not visit.
RoundSlice pack_slice(const NestedParts& parts);
/// The sizes and keys in a slice.
std::vector<std::string> structure_of(const RoundSlice& slice);
/// Puts everything else into a value of that structure. Throws ConfigError for
/// a user's type that has another number of tensors when newly constructed.
void unpack_slice(const RoundSlice& slice, const NestedParts& parts);

/// Number of rows of a round: of its tensors, or of the list that it is.
std::int64_t rows_of_round(const NestedParts& round);
/// The slices of `round` for the ranks with these shares, by the dataset's own
/// function if it has one. Rows past the end of the round come from `first`,
/// repeated as necessary; other numbers and strings are those of `round`.
std::vector<RoundSlice> slices_of_round(
    const LoaderDataset& dataset,
    LoadedBatch& round,
    LoadedBatch& first,
    const LoaderContext& context);
/// Fills a new batch of `dataset` from a slice.
std::unique_ptr<LoadedBatch> received_batch(
    const LoaderDataset& dataset,
    const RoundSlice& slice);

/// The description of a round that rank 0 sends before its tensors.
struct RoundHeader {
  /// The pass, and the round within it, that a rank is about to send or
  /// receive, both counted from 0. Every rank passes it, since they must agree.
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
/// Also throws rank 0's error on the other ranks, and Error on a rank that is
/// in a different round than rank 0.
RoundSlice scatter_round(
    const Group& group,
    RoundHeader& header,
    const std::vector<RoundSlice>& slices);

}  // namespace accelerate::detail
