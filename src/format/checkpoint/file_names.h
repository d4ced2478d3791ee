#pragma once

#include <cstddef>
#include <string>

namespace accelerate::detail {

inline constexpr const char* kStateSection = "state";
/// The key of the JSON in the metadata of the files that hold states.
inline constexpr const char* kStateKey = "state";
/// The key of a dictionary that stands for a tensor; its value is the tensor's
/// name in the section. Part of the file format.
inline constexpr const char* kTensorKey = "tensor of the part";

/// "model", "model_1", and so on: the name of the `i`-th of a kind.
std::string numbered(const std::string& kind, std::size_t i);
/// The file of a section: "model.safetensors", or, if the section is sharded,
/// "model-00002-of-00004.safetensors" for rank 1 of 4.
std::string section_file(
    const std::string& section,
    bool is_sharded,
    int rank,
    int num_processes);
/// "pytorch_model_1.bin" for "model_1".
std::string torch_file_of(const std::string& section);
/// "rank-00003.safetensors".
std::string rank_file(int rank);

}  // namespace accelerate::detail
