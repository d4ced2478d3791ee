#pragma once

#include "modules/module_tree.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

/// A recorded module tree. `tied` has groups of parameter names that share one
/// tensor.
detail::ModuleNode module_tree_of(
    const Json& module,
    const Json& tied = Json::array());

}  // namespace accelerate::oracle
