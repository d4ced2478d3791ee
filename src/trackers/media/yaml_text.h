#pragma once

#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// A YAML document in block style that YAML 1.1 (PyYAML) and 1.2 (ruamel.yaml)
/// read as the same values: strings stay strings and real numbers stay real.
/// Named values and lists may be nested. Bytes that are not UTF-8 are escaped.
std::string yaml_text(const TrackedValues& values);

}  // namespace accelerate::detail
