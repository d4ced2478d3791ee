#include "kernels/device/sources.h"

#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

struct SourceParts {
  std::string_view name;
  std::vector<std::string_view> parts;
  std::vector<std::string_view> entries;
  // The values of each macro, apart from VALUE.
  std::vector<std::vector<std::string>> macros = {};
};

std::vector<SourceParts> all_sources() {
  const SourceTexts texts = source_texts();
  const std::string_view prelude = texts.prelude;
  const std::string_view formats = texts.float8_formats;
  const std::vector<std::vector<std::string>> casts{
      {"FORMAT=E4m3", "FORMAT=E5m2"},
      {"ROUNDING=ToNearest", "ROUNDING=Randomly"}};
  return {
      {"float8_amax",
       {prelude, formats, texts.float8_amax},
       {"amax", "amax_of_columns"}},
      {"float8_tile",
       {prelude, formats, texts.float8_tile},
       {"cast_tile"},
       casts},
      {"float8_rows",
       {prelude, formats, texts.float8_rows},
       {"cast_rows"},
       casts},
      {"float8_blocks",
       {prelude, formats, texts.float8_blocks},
       {"cast_blocks_of_rows", "cast_blocks_of_columns"},
       casts},
      {"cross_entropy",
       {prelude, texts.cross_entropy},
       {"cross_entropy_forward", "cross_entropy_backward"}},
      {"bias_activation",
       {prelude, texts.bias_activation},
       {"bias_activation"},
       {{"ACTIVATION=Gelu",
         "ACTIVATION=GeluTanh",
         "ACTIVATION=Silu",
         "ACTIVATION=Relu"}}},
      {"add_norm",
       {prelude, texts.add_norm},
       {"add_norm_forward", "add_norm_backward"},
       {{"CENTERS=true", "CENTERS=false"}}},
      {"rotary", {prelude, texts.rotary}, {"rotary"}},
  };
}

}  // namespace

std::string KernelProgram::text() const {
  std::string list;
  for (const std::string& definition : definitions)
    list += (list.empty() ? "" : ", ") + definition;
  return format("{} ({})", source, list);
}

std::string kernel_source(std::string_view name) {
  for (const SourceParts& source : all_sources()) {
    if (source.name != name) continue;
    std::string text;
    for (const std::string_view part : source.parts) text += part;
    return text;
  }
  throw InternalError(
      format("[kernels] there is no kernel source \"{}\"", name));
}

std::vector<KnownProgram> known_programs() {
  std::vector<KnownProgram> programs;
  for (const SourceParts& source : all_sources()) {
    std::vector<std::vector<std::string>> chosen{
        {"VALUE=Float32"}, {"VALUE=BFloat16"}, {"VALUE=Float16"}};
    for (const std::vector<std::string>& values : source.macros) {
      std::vector<std::vector<std::string>> longer;
      for (const auto& definitions : chosen) {
        for (const std::string& value : values) {
          longer.push_back(definitions);
          longer.back().push_back(value);
        }
      }
      chosen = std::move(longer);
    }
    for (auto& definitions : chosen) {
      programs.push_back(
          {{source.name, std::move(definitions)}, source.entries});
    }
  }
  return programs;
}

}  // namespace accelerate::detail
