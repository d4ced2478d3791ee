#include <accelerate/error.h>

#include "engines/fully_sharded/fully_sharded.h"
#include "modules/wrap_policy.h"
#include "oracle/module_trees.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

namespace topic_fsdp_policy {

Json wrapped(const Json& input, int version) {
  const bool is_by_size = input.at("policy") == "SIZE_BASED_WRAP";
  std::vector<std::string> classes;
  if (!is_by_size) {
    // C++ modules have no list of their own, so the caller passes it.
    const Json& given = input.at("classes");
    const Json& list = given.is_null() ? input.at("no_split_modules") : given;
    if (!list.is_null()) list.get_to(classes);
  }
  const detail::WrapPolicy policy = detail::wrap_policy_of(
      is_by_size ? AutoWrapPolicy::size_based_wrap
                 : AutoWrapPolicy::transformer_based_wrap,
      classes,
      is_by_size ? input.at("min_num_params").get<std::int64_t>() : 0,
      version);
  try {
    return {
        {"wrapped",
         detail::wrapped_modules(module_tree_of(input.at("module")), policy)}};
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace topic_fsdp_policy

Json run_fsdp_policy(const Json& input) {
  using namespace topic_fsdp_policy;
  return {{"version_1", wrapped(input, 1)}, {"version_2", wrapped(input, 2)}};
}

}  // namespace accelerate::oracle
