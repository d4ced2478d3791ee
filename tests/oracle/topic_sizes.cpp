#include "base/sizes.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {

Json run_sizes(const Json& input) {
  const std::string kind = input.at("kind");
  if (kind == "convert_file_size_to_int") {
    const Json& size = input.at("size");
    if (size.is_string()) {
      return {{"bytes", detail::parse_size(size.get<std::string>())}};
    }
    return {{"bytes", detail::parse_size(size.dump())}};
  }
  if (kind == "convert_bytes") {
    return {{"text", detail::format_size(input.at("bytes").get<double>())}};
  }
  if (kind == "dtype_byte_size") {
    return {
        {"bytes", detail::dtype_bytes(input.at("dtype").get<std::string>())}};
  }
  throw NotBuilt(kind);
}

}  // namespace accelerate::oracle
