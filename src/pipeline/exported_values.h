#pragma once

#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include <accelerate/detail/pipeline_value.h>

namespace accelerate::detail {

/// Values of an exported program as one stage sends them to the next: tensors,
/// and numbers as part of the structure, which travels with the first
/// micro-batch alone if shapes do not change, and never through a device.
PipelineValue stage_value(const std::vector<c10::IValue>& values);
std::vector<c10::IValue> program_values(const PipelineValue& value);

/// The inputs of a program with these names: tensors one after another, however
/// they were nested, or a map. Throws ConfigError for a map with other names.
std::vector<c10::IValue> program_inputs(
    const PipelineValue& value,
    const std::vector<std::string>& names);
/// The results of a program: a tensor if there is one without a name, otherwise
/// a map by name, without those that are None.
PipelineValue program_results(
    const std::vector<c10::IValue>& values,
    const std::vector<std::string>& names);

}  // namespace accelerate::detail
