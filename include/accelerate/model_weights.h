#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/model.h>
#include <accelerate/weights.h>

namespace accelerate::detail {

struct PreparedModel;

// Implementations of the Accelerator's corresponding functions.
ACCELERATE_API void save_prepared(
    const PreparedModel& model,
    const std::filesystem::path& directory,
    const SaveModelOptions& options);
ACCELERATE_API void load_prepared(
    PreparedModel& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options);
ACCELERATE_API std::string describe_prepared(const PreparedModel& model);

}  // namespace accelerate::detail

namespace accelerate {

/// Describes a prepared model, one line per parameter: its name, dtype and
/// shape, the unit it is gathered with, the rows that this rank keeps, and the
/// dtypes in which it is kept, computed and reduced. Meant for people.
template <class M>
std::string describe(const Model<M>& model) {
  return detail::describe_prepared(*model.prepared());
}

}  // namespace accelerate
