#include "format/exported/exported_graph.h"

#include <array>
#include <string_view>

namespace accelerate::detail {

namespace {

struct DtypeRow {
  ExportedDtype dtype;
  std::string_view name;
  std::size_t num_bytes;
};

using enum ExportedDtype;
constexpr std::array<DtypeRow, 21> kDtypes = {{
    {uint8, "uint8", 1},
    {int8, "int8", 1},
    {int16, "int16", 2},
    {int32, "int32", 4},
    {int64, "int64", 8},
    {float16, "float16", 2},
    {float32, "float32", 4},
    {float64, "float64", 8},
    {complex32, "complex32", 4},
    {complex64, "complex64", 8},
    {complex128, "complex128", 16},
    {boolean, "bool", 1},
    {bfloat16, "bfloat16", 2},
    {uint16, "uint16", 2},
    {float8_e4m3fn, "float8_e4m3fn", 1},
    {float8_e5m2, "float8_e5m2", 1},
    {float8_e4m3fnuz, "float8_e4m3fnuz", 1},
    {float8_e5m2fnuz, "float8_e5m2fnuz", 1},
    {float8_e8m0fnu, "float8_e8m0fnu", 1},
    {uint32, "uint32", 4},
    {uint64, "uint64", 8},
}};

const DtypeRow& row_of(ExportedDtype dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row;
  }
  return kDtypes.front();
}

}  // namespace

std::optional<ExportedDtype> exported_dtype(std::int64_t number) {
  for (const DtypeRow& row : kDtypes) {
    if (static_cast<std::int64_t>(row.dtype) == number) return row.dtype;
  }
  return std::nullopt;
}

std::string name_of(ExportedDtype dtype) {
  return std::string(row_of(dtype).name);
}

std::size_t element_bytes(ExportedDtype dtype) {
  return row_of(dtype).num_bytes;
}

}  // namespace accelerate::detail
