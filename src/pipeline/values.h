#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>

namespace accelerate::detail {

/// Throws ConfigError if a layer returned an undefined tensor, other than as an
/// optional without value.
void require_tensors(const PipelineValue& value, const std::string& layer);

/// Samples of each of `count` micro-batches of a batch: the first ones have one
/// more if the number does not divide it.
std::vector<std::int64_t> micro_batch_rows(std::int64_t rows, int count);

/// The micro-batches of a batch, cut along dimension 0.
std::vector<PipelineValue> cut_micro_batches(
    const PipelineValue& batch,
    const std::vector<std::int64_t>& rows);

/// Puts the tensors of micro-batches, which are nested alike, together along
/// dimension 0; numbers become a vector.
PipelineValue join_micro_batches(const std::vector<PipelineValue>& parts);

/// Number of samples of a batch, all of whose tensors have as many; 0 without
/// tensors. Throws ConfigError if they differ, or for an undefined tensor or a
/// number.
std::int64_t num_rows_of(
    const PipelineValue& inputs,
    const PipelineValue& targets = {});

}  // namespace accelerate::detail
