#pragma once

#include <cstddef>
#include <span>
#include <string_view>

/// The fuzzing targets. Each takes any bytes, and either reads them or throws
/// accelerate::Error; anything else is a defect.
namespace accelerate::fuzz {

using Input = std::span<const std::byte>;

void safetensors_header(Input input);
void manifest(Input input);
void model_index(Input input);
void pickle(Input input);
void zip(Input input);
void torch_file(Input input);
void state_of_distributed(Input input);
/// What clients send to the store of a launch. Beyond what the others promise,
/// memory is bounded by the bytes that came and by the store's limits.
void store(Input input);

struct Target {
  std::string_view name;
  void (*run)(Input input);
};
inline constexpr Target kTargets[] = {
    {"safetensors_header", &safetensors_header},
    {"manifest", &manifest},
    {"model_index", &model_index},
    {"pickle", &pickle},
    {"zip", &zip},
    {"torch_file", &torch_file},
    {"state_of_distributed", &state_of_distributed},
    {"store", &store}};

}  // namespace accelerate::fuzz
