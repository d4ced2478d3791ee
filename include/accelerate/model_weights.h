#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <accelerate/export.h>
#include <accelerate/model.h>
#include <accelerate/weights.h>

namespace accelerate {

/// Describes a prepared model, one line per parameter: its name, dtype and
/// shape, the unit it is gathered with, the rows that this rank keeps, and the
/// dtypes in which it is kept, computed and reduced. Meant for people.
ACCELERATE_API std::string describe(const detail::ModelReference& model);

}  // namespace accelerate
