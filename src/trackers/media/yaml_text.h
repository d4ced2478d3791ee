#pragma once

#include <string>

#include <accelerate/tracker.h>

namespace accelerate::detail {

/// The YAML libraries whose output yaml_text() can imitate.
enum class YamlDialect {
  pyyaml,  ///< YAML 1.1; names in the order of their bytes, `null`, `1.0e-05`
  ruamel   ///< YAML 1.2; names as they are given, nothing for none, `1e-05`
};

/// A YAML document in block style, as PyYAML's or ruamel.yaml's dump() writes
/// it: strings are quoted where they would be read as something else. Unlike
/// theirs, long lines are not folded and non-ASCII letters are not escaped.
/// Named values and lists may be nested.
std::string yaml_text(
    const TrackedValues& values,
    YamlDialect dialect = YamlDialect::pyyaml);

}  // namespace accelerate::detail
