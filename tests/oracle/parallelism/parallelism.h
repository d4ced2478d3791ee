#pragma once

#include "oracle/oracle.h"

namespace accelerate::oracle::topic_parallelism {

/// scale * (((7 i + 13 seed) mod 31) - 15) / 16 at flat position i.
at::Tensor values(
    const std::vector<std::int64_t>& shape,
    std::int64_t seed,
    double scale = 1);

/// A model whose layers are split over ranks as a plan says.
Json split_layers(const Json& input);
/// One step of a pipeline of linear layers.
Json pipeline_step(const Json& input);
/// prepare_pippy() of linear layers, and one forward.
Json divide_for_inference(const Json& input);
/// Ring attention of ranks that share a sequence.
Json split_sequences(const Json& input);

}  // namespace accelerate::oracle::topic_parallelism
