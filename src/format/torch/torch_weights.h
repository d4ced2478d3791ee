#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "format/tensors/stored_tensors.h"

namespace accelerate::detail {

/// Receives the names of numpy arrays, which are not read.
using OnArray = std::function<void(const std::string& name)>;

/// The tensors anywhere in a torch.save file, in LibTorch's archives of modules
/// and optimizers, and in those of TorchScript. Names are joined by dots: keys
/// of dictionaries, indices in lists and tuples, attributes of objects. Those
/// of a module's parameters and buffers are as in its state_dict(). Throws
/// CheckpointError, with the name, for tensors that cannot be read, and if two
/// tensors would have the same name.
StoredTensors stored_in_torch_file(
    const std::filesystem::path& file,
    const OnArray& on_array = {});

/// Reads a file of weights: a file that holds other values, but no tensors, is
/// an error.
StoredTensors weights_in_torch_file(
    const std::filesystem::path& file,
    const OnArray& on_array = {});

}  // namespace accelerate::detail
