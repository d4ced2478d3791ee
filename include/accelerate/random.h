#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Generator.h>

#include <accelerate/export.h>
#include <accelerate/world.h>

namespace accelerate {

struct SeedOptions {
  /// Add this rank's number in the world, for noise that must differ between
  /// ranks.
  bool device_specific = false;
  /// Use only algorithms that give the same result every time; an operation
  /// that has none throws. Slower. Applies to the whole process; a later
  /// set_seed() does not turn it off.
  bool deterministic = false;
};

/// Seeds LibTorch's generators of the CPU and all devices.
ACCELERATE_API void set_seed(
    std::uint64_t seed,
    const SeedOptions& options = {});
/// Seeds the generators; `device_specific` needs the rank of `world`.
ACCELERATE_API void set_seed(
    std::uint64_t seed,
    const World& world,
    const SeedOptions& options = {});

/// The generator whose state is synchronised.
enum class RNGType {
  torch,          ///< the CPU's default generator
  device,         ///< the default generator of this rank's accelerator, if any
  cuda = device,  ///< Accelerate's name for it on NVIDIA's GPUs
  generator,      ///< the one that draws the order of a loader
};

/// Gives every rank the random states of rank 0. Collective. Throws ConfigError
/// for RNGType::generator, which is an option of loaders
/// (AcceleratorOptions::rng_types).
ACCELERATE_API void synchronize_rng_states(
    const World& world,
    const std::vector<RNGType>& types = {RNGType::torch});
/// Gives every rank the state of rank 0's generator. Collective.
ACCELERATE_API void synchronize_rng_state(
    const Group& group,
    at::Generator& generator);

}  // namespace accelerate
