#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/version.h>

#include <accelerate/exported_model.h>
#include <accelerate/safetensors.h>

namespace accelerate::testing {

/// Kernels compute on one thread while it lives, as when programs were recorded:
/// threads add what belongs to one element in any order.
class OneThread {
 public:
  OneThread() { torch::set_num_threads(1); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() { torch::set_num_threads(before_); }

 private:
  int before_ = torch::get_num_threads();
};

/// The programs of PyTorch 2.11, and in "2.15" of 2.15.
inline std::filesystem::path program_path(
    const std::string& name,
    const std::string& exporter = "2.11") {
  const std::filesystem::path programs = ACCELERATE_EXPORTED_PROGRAMS;
  return (exporter == "2.11" ? programs : programs / exporter) /
      (name + ".pt2");
}

/// The record of the PyTorch that computes the tests; most are of all versions.
inline std::filesystem::path record_path(const std::string& name) {
  const std::filesystem::path programs = ACCELERATE_EXPORTED_PROGRAMS;
  const auto common = programs / (name + ".safetensors");
  const auto newer = programs / "2.15" / (name + ".safetensors");
  const bool is_newer = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;
  const bool is_chosen = is_newer || !std::filesystem::exists(common);
  return is_chosen && std::filesystem::exists(newer) ? newer : common;
}

/// What PyTorch computed with a program, from tools/make_exported_programs.py.
class Record {
 public:
  explicit Record(const std::string& name) : reader_(record_path(name)) {}

  [[nodiscard]] bool contains(const std::string& name) const {
    return reader_.contains(name);
  }
  [[nodiscard]] torch::Tensor at(const std::string& name) const {
    const auto& info = reader_.info(name);
    std::vector<std::int64_t> shape(info.shape.begin(), info.shape.end());
    const torch::Tensor tensor = torch::empty(shape, dtype_of(info.dtype));
    const auto bytes = reader_.bytes(name);
    if (!bytes.empty())
      std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }
  /// Names that begin with the prefix, without it.
  [[nodiscard]] std::vector<std::string> names(
      const std::string& prefix) const {
    std::vector<std::string> found;
    for (const auto& [name, info] : reader_.header().tensors) {
      if (name.starts_with(prefix)) found.push_back(name.substr(prefix.size()));
    }
    return found;
  }
  /// input.0, input.1 ...
  [[nodiscard]] std::vector<c10::IValue> inputs(
      const std::string& prefix = "input.") const {
    std::vector<c10::IValue> values;
    for (int i = 0; contains(prefix + std::to_string(i)); ++i) {
      values.emplace_back(at(prefix + std::to_string(i)));
    }
    return values;
  }
  [[nodiscard]] std::vector<double> numbers(const std::string& name) const {
    const torch::Tensor tensor = at(name);
    const double* data = tensor.const_data_ptr<double>();
    return {data, data + tensor.numel()};
  }

 private:
  static torch::ScalarType dtype_of(safetensors::Dtype dtype) {
    switch (dtype) {
      case safetensors::Dtype::F64:
        return torch::kDouble;
      case safetensors::Dtype::BF16:
        return torch::kBFloat16;
      case safetensors::Dtype::I64:
        return torch::kLong;
      case safetensors::Dtype::BOOL:
        return torch::kBool;
      default:
        return torch::kFloat;
    }
  }

  safetensors::Reader reader_;
};

inline void expect_same(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    const std::string& what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  ASSERT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  const torch::Tensor a = actual.detach().to(torch::kDouble);
  const torch::Tensor b = expected.to(torch::kDouble);
  EXPECT_TRUE(torch::equal(a, b) || torch::allclose(a, b, 0, 0, true))
      << what << " differs by " << (a - b).abs().max().item<double>();
}

inline void expect_near(
    const std::vector<double>& actual,
    const std::vector<double>& expected,
    double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], expected[i], tolerance) << "step " << i;
}

inline torch::Tensor logits_of(const ExportedOutputs& outputs) {
  return outputs.contains("logits") ? outputs["logits"] : outputs[0];
}

inline torch::Tensor loss_of(const ExportedOutputs& outputs) {
  return outputs.contains("loss") ? outputs["loss"]
                                  : logits_of(outputs).square().mean();
}

}  // namespace accelerate::testing
