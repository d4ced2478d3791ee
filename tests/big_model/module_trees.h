#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/text/sizes.h"
#include "modules/module_tree.h"

namespace accelerate::testing {

/// Makes module trees for tests; every tensor gets a unique id.
class TreeMaker {
 public:
  detail::ModuleTensor tensor(
      const std::string& name,
      std::int64_t num_elements,
      const std::string& dtype = "float32") {
    const double bytes =
        detail::dtype_bytes(dtype) * static_cast<double>(num_elements);
    return {
        name,
        dtype,
        num_elements,
        static_cast<std::uint64_t>(bytes),
        next_id_++,
        {num_elements}};
  }

  detail::ModuleNode
  linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) {
    detail::ModuleNode module{name, "Linear", {}, {}, {}};
    module.parameters = {
        tensor("weight", inputs * outputs), tensor("bias", outputs)};
    return module;
  }

  /// The model of Accelerate's own tests: 64 + 72 + 100 bytes, including 40
  /// bytes of buffers.
  detail::ModuleNode model_for_test(const std::string& name = "") {
    detail::ModuleNode norm{"batchnorm", "BatchNorm1d", {}, {}, {}};
    norm.parameters = {tensor("weight", 4), tensor("bias", 4)};
    norm.buffers = {
        tensor("running_mean", 4),
        tensor("running_var", 4),
        tensor("num_batches_tracked", 1, "int64")};
    return {
        name,
        "ModelForTest",
        {},
        {},
        {linear("linear1", 3, 4), norm, linear("linear2", 4, 5)}};
  }

  /// A Sequential of three layers: "0", "1" and "2".
  detail::ModuleNode sequential_of_three() {
    return {
        "",
        "Sequential",
        {},
        {},
        {model_for_test("0"), model_for_test("1"), model_for_test("2")}};
  }

 private:
  std::uint64_t next_id_ = 0;
};

}  // namespace accelerate::testing
