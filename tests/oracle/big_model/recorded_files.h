#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <accelerate/weights.h>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// The text of a folder's index.json, and the size and digest of each weight's
/// file, in the recorded form.
Json folder_json(const std::filesystem::path& folder);

/// The tensors that [name, description] pairs describe.
WeightList weights_of(const Json& pairs);

void write_safetensors(
    const std::filesystem::path& file,
    const WeightList& weights,
    const std::map<std::string, std::string>& metadata);

/// Writes the "checkpoint" of a case into a folder, and returns the path that
/// the case passes to the loading function: the folder, a file or an index.
std::filesystem::path write_checkpoint(
    const Json& checkpoint,
    const std::filesystem::path& folder);

}  // namespace accelerate::oracle
