#include <accelerate/error.h>

#include "engines/wrap_policy.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

namespace {

using detail::WrapNode;

WrapNode tree_of(
    const Json& json,
    const std::string& name,
    std::uint64_t& next_parameter) {
  WrapNode node{name, json.at("class"), {}, {}};
  for (const Json& parameter : json.at("parameters")) {
    std::int64_t count = 1;
    for (const std::int64_t size : parameter.at(1).at("shape")) count *= size;
    node.parameters.emplace(next_parameter++, count);
  }
  for (const Json& child : json.at("children")) {
    const std::string below = child.at(0);
    node.children.push_back(tree_of(
        child.at(1),
        name.empty() ? below : name + "." + below,
        next_parameter));
  }
  return node;
}

Json wrapped(const Json& input, int version) {
  FullyShardedDataParallelOptions options;
  options.fsdp_version = version;
  if (input.at("policy") == "SIZE_BASED_WRAP") {
    options.auto_wrap_policy = AutoWrapPolicy::size_based_wrap;
    options.min_num_params = input.at("min_num_params").get<std::int64_t>();
  } else {
    options.auto_wrap_policy = AutoWrapPolicy::transformer_based_wrap;
    // A C++ module has no list of its own; who knows one gives it.
    for (const char* const list : {"classes", "no_split_modules"}) {
      if (!options.transformer_cls_names_to_wrap && !input.at(list).is_null()) {
        options.transformer_cls_names_to_wrap =
            input.at(list).get<std::vector<std::string>>();
      }
    }
  }
  std::uint64_t next_parameter = 0;
  try {
    return {
        {"wrapped",
         detail::wrapped_modules(
             tree_of(input.at("module"), "", next_parameter), options)}};
  } catch (const ConfigError& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

Json run_fsdp_policy(const Json& input) {
  return {{"version_1", wrapped(input, 1)}, {"version_2", wrapped(input, 2)}};
}

}  // namespace accelerate::oracle
