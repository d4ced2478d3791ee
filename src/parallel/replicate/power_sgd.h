#pragma once

#include <memory>

#include "parallel/replicate/gradient_reduction.h"

namespace accelerate::detail {

/// Low-rank compression of each gradient matrix M, with rows n and columns m:
/// P = M Q is summed over the ranks and made orthogonal, Q = Mᵀ P is averaged,
/// and P Qᵀ stands for the mean of all M. (Vogels et al., NeurIPS 2019.)
///
/// Sums of P travel while backward goes on; those of Q when the last bucket is
/// there, in the same order on all ranks. What is kept between steps is kept by
/// parameter, so that it outlives changes of the buckets.
std::unique_ptr<GradientReduction> make_power_sgd(
    const PowerSGDOptions& options,
    NameOf name_of);

/// The same with each bucket as one square matrix, filled up with zeros.
std::unique_ptr<GradientReduction> make_batched_power_sgd(
    const PowerSGDOptions& options,
    NameOf name_of);

}  // namespace accelerate::detail
