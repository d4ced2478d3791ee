#pragma once

#include <memory>

#include "parallel/replicate/gradient_reduction.h"

namespace accelerate::detail {

/// Low-rank compression of each gradient matrix M: P = M Q is summed over the
/// ranks and orthogonalised, Q = M^T P is averaged, and P Q^T replaces the mean
/// of all M. (Vogels et al., NeurIPS 2019.)
///
/// P is reduced while backward continues, Q after the last bucket, in the same
/// order on all ranks. State is kept by parameter, so that it outlives changes
/// of the buckets.
std::unique_ptr<GradientReduction> make_power_sgd(
    const PowerSGDOptions& options,
    NameOf name_of);

/// Makes PowerSGD that treats each bucket as one square matrix, padded with
/// zeros.
std::unique_ptr<GradientReduction> make_batched_power_sgd(
    const PowerSGDOptions& options,
    NameOf name_of);

}  // namespace accelerate::detail
