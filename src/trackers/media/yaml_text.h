#pragma once

#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// A YAML document of block style, as PyYAML's dump() writes it: names in the
/// order of their bytes, strings quoted where they would be read as something
/// else. Differs in that long lines are not folded and letters beyond ASCII are
/// not escaped. Named values and lists may be nested.
std::string yaml_text(const TrackedValues& values);

}  // namespace accelerate::detail
