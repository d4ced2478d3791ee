#pragma once

#include "oracle/oracle.h"

namespace accelerate::oracle::topic_parallelism {

/// scale * (((7 i + 13 seed) mod 31) - 15) / 16 at flat position i.
at::Tensor values(
    const std::vector<std::int64_t>& shape,
    std::int64_t seed,
    double scale = 1);

/// Runs a model whose layers are split over ranks by a plan.
Json split_layers(const Json& input);
/// Runs one step of a pipeline of linear layers.
Json pipeline_step(const Json& input);
/// Returns the order in which a schedule computes.
Json order_schedule(const Json& input);
/// PyTorch numbers the forwards of 1F1B differently in print than it runs them.
bool forwards_are_numbered_from_0(
    const Json& input,
    const Json& found,
    Json& expected);
/// PyTorch refuses numbers of micro-batches that this library accepts.
bool any_number_of_micro_batches(
    const Json& input,
    const Json& found,
    Json& expected);
/// Runs prepare_pippy() on linear layers, and one forward.
Json divide_for_inference(const Json& input);
/// Runs ring attention on ranks that share a sequence.
Json split_sequences(const Json& input);

}  // namespace accelerate::oracle::topic_parallelism
