#pragma once

#include <cstdint>
#include <vector>

#include <accelerate/pipeline_layers.h>

namespace accelerate::detail {

/// Samples of each of `count` micro-batches of a batch: the first ones have one
/// more if the number does not divide it.
std::vector<std::int64_t> micro_batch_rows(std::int64_t rows, int count);

/// The micro-batches of a batch, cut along dimension 0.
std::vector<PipelineTensors> cut_micro_batches(
    const PipelineTensors& batch,
    const std::vector<std::int64_t>& rows);

/// Puts the tensors of micro-batches together along dimension 0; numbers become
/// a vector.
PipelineTensors join_micro_batches(const std::vector<PipelineTensors>& parts);

/// Number of samples of a batch, all of whose tensors have as many; 0 without
/// tensors. Throws ConfigError if they differ, or for an undefined tensor or a
/// number.
std::int64_t num_rows_of(
    const PipelineTensors& inputs,
    const PipelineTensors& targets = {});

}  // namespace accelerate::detail
