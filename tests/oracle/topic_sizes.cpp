#include <accelerate/weights.h>

#include "base/text/sizes.h"
#include "oracle/module_trees.h"
#include "oracle/oracle.h"
#include "planning/memory_estimate.h"

namespace accelerate::oracle {

namespace topic_sizes {

Json run_estimate(const Json& input) {
  const detail::ModuleNode module = module_tree_of(input.at("module"));
  const auto total = detail::total_bytes(module);
  detail::WrapPolicy no_split{.kind = detail::WrapPolicy::Kind::none};
  if (!input.at("no_split_modules").is_null()) {
    no_split.kind = detail::WrapPolicy::Kind::classes;
    input.at("no_split_modules").get_to(no_split.class_names);
  }
  const auto largest = detail::largest_layers(module, no_split);
  std::vector<detail::MemoryEstimate> estimates;
  Json rows = Json::array();
  for (const Json& dtype : input.at("dtypes")) {
    estimates.push_back(detail::estimate_memory(
        dtype.get<std::string>(), largest.num_bytes, total));
    const auto& each = estimates.back();
    rows.push_back(
        {{"dtype", each.dtype},
         {"largest", each.largest_layer},
         {"total", each.total},
         {"training",
          {{"model", each.training.model},
           {"gradients", each.training.gradients},
           {"optimizer", each.training.optimizer},
           {"step", each.training.step}}}});
  }
  return {
      {"total", total},
      {"largest", largest.num_bytes},
      {"largest_names", largest.names},
      {"rows", std::move(rows)},
      {"table",
       detail::memory_table(input.at("name").get<std::string>(), estimates)}};
}

}  // namespace topic_sizes

Json run_sizes(const Json& input) {
  using namespace topic_sizes;
  const std::string kind = input.at("kind");
  if (kind == "convert_file_size_to_int") {
    const Json& size = input.at("size");
    if (size.is_string()) {
      return {{"bytes", detail::parse_size(size.get<std::string>())}};
    }
    // A plain number is in bytes.
    return {{"bytes", ByteSize(size.get<std::int64_t>()).bytes()}};
  }
  if (kind == "convert_bytes") {
    return {{"text", detail::format_size(input.at("bytes").get<double>())}};
  }
  if (kind == "dtype_byte_size") {
    return {
        {"bytes", detail::dtype_bytes(input.at("dtype").get<std::string>())}};
  }
  if (kind == "estimate") return run_estimate(input);
  throw NotBuilt(kind);
}

}  // namespace accelerate::oracle
