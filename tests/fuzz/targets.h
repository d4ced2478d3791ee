#pragma once

#include <cstddef>
#include <span>
#include <string_view>

/// The fuzzing targets. Each takes any bytes and either reads them or throws
/// accelerate::Error; anything else is a defect, as is using more memory than
/// `Target` allows for an input of this size.
namespace accelerate::fuzz {

using Input = std::span<const std::byte>;

// Tensor files.
void safetensors_header(Input input);
void manifest(Input input);
void model_index(Input input);
void pickle(Input input);
void zip(Input input);
void torch_file(Input input);
void state_of_distributed(Input input);
/// An archive of torch.export; its program; the table of its tensors, and the
/// facts that the exporting script adds.
void exported_archive(Input input);
void exported_program(Input input);
void exported_tensors(Input input);
// Settings and data.
void config_file(Input input);
void deepspeed_config(Input input);
void model_config(Input input);
void json_lines(Input input);
void csv(Input input);
void idx(Input input);
/// An image; a TGA file if it begins with "TGA", which is left out.
void image(Input input);
/// Arguments of `launch`, one per line.
void launch_arguments(Input input);
/// Bytes that clients send to the store of a launch. In addition to the usual
/// bound, memory is bounded by the bytes received and the store's limits.
void store(Input input);
// What runs leave behind. Frames of journals are given their checksums.
void journal(Input input);
/// Also aborts unless a process that continues the journal keeps its frames and
/// adds one.
void continued_journal(Input input);
/// Traces of two ranks, with a zero byte between them.
void trace(Input input);

struct Target {
  std::string_view name;
  void (*run)(Input input);
  /// The most memory in use at any moment: per byte of the input, and in
  /// addition.
  std::size_t memory_per_byte;
  std::size_t other_memory;
};

inline constexpr std::size_t kMegabyte = std::size_t{1} << 20U;
inline constexpr Target kTargets[] = {
    {"safetensors_header", &safetensors_header, 200, kMegabyte},
    {"manifest", &manifest, 200, kMegabyte},
    {"model_index", &model_index, 200, kMegabyte},
    {"pickle", &pickle, 100, kMegabyte},
    {"zip", &zip, 100, kMegabyte},
    // Tensors that repeat elements take 8 bytes per byte and 8 MiB; their names
    // and places take 64 bytes per byte and 16 MiB.
    {"torch_file", &torch_file, 200, 48 * kMegabyte},
    {"state_of_distributed", &state_of_distributed, 400, kMegabyte},
    {"exported_archive", &exported_archive, 500, kMegabyte},
    {"exported_program", &exported_program, 500, kMegabyte},
    {"exported_tensors", &exported_tensors, 500, kMegabyte},
    {"config_file", &config_file, 1000, 2 * kMegabyte},
    {"deepspeed_config", &deepspeed_config, 500, kMegabyte},
    // A config.json can produce up to 10,000 layers of 20 tensors.
    {"model_config", &model_config, 200, 96 * kMegabyte},
    {"json_lines", &json_lines, 200, kMegabyte},
    {"csv", &csv, 200, kMegabyte},
    {"idx", &idx, 10, kMegabyte},
    // A small file can announce the largest image, which is decoded and then
    // copied.
    {"image", &image, 100, 2048 * kMegabyte},
    {"launch_arguments", &launch_arguments, 500, 16 * kMegabyte},
    {"store", &store, 200, 16 * kMegabyte},
    // A byte of a compressed image holds up to 8,000 pixels.
    {"journal", &journal, 10'000, 4 * kMegabyte},
    {"continued_journal", &continued_journal, 10, 4 * kMegabyte},
    {"trace", &trace, 500, kMegabyte}};

}  // namespace accelerate::fuzz
