#pragma once

#include <string>

#include <torch/types.h>

#include <gtest/gtest.h>

#include "support/load_gpu.h"
#include "support/run_on_ranks.h"

namespace accelerate::testing {

/// Why there is no device_of_ranks(); empty if there is one.
inline std::string missing_device_of_ranks() {
  return device_of_ranks().is_cuda() ? missing_gpu() : "";
}

/// Fixture of tests that need a CUDA device; they are skipped with a reason if
/// there is none.
class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!missing_gpu().empty())
      GTEST_SKIP() << "label gpu was not run: " << missing_gpu();
  }
  const at::Device device_{at::kCUDA, 0};
};

}  // namespace accelerate::testing
