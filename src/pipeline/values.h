#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/pipeline_value.h>

namespace accelerate::detail {

/// Throws ConfigError if a layer returned an undefined tensor, other than as an
/// optional without a value.
void require_tensors(const PipelineValue& value, const std::string& layer);

/// Returns the number of samples in each of `count` micro-batches of a batch;
/// if it does not divide evenly, the first ones get one more.
std::vector<std::int64_t> micro_batch_rows(std::int64_t rows, int count);

/// Cuts a batch into micro-batches along dimension 0.
std::vector<PipelineValue> cut_micro_batches(
    const PipelineValue& batch,
    const std::vector<std::int64_t>& rows);

/// Concatenates the tensors of micro-batches, which are nested alike, along
/// dimension 0; numbers become a vector.
PipelineValue join_micro_batches(const std::vector<PipelineValue>& parts);

/// Returns the number of samples in a batch, the same in all its tensors; 0
/// without tensors. Throws ConfigError if they differ, or for an undefined
/// tensor or a number.
std::int64_t num_rows_of(
    const PipelineValue& inputs,
    const PipelineValue& targets = {});

}  // namespace accelerate::detail
