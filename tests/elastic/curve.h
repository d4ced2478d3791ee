#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace accelerate {
namespace elastic_test {

/// A step as recorded by the last process that made it.
struct Step {
  double loss = 0;
  std::multiset<int> samples;

  friend bool operator==(const Step&, const Step&) = default;
};

using Curve = std::map<int, Step>;

inline Curve read_curve(const std::filesystem::path& directory) {
  Curve curve;
  std::ifstream file(directory / "curve");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    int number = 0;
    Step step;
    words >> number >> step.loss;
    for (int sample = 0; words >> sample;) step.samples.insert(sample);
    curve[number] = step;
  }
  return curve;
}

// An epoch has ten steps of twelve samples.
inline void expect_each_sample_once(const Curve& curve) {
  constexpr int kStepsPerEpoch = 10;
  std::multiset<int> seen;
  for (const auto& [number, step] : curve) {
    seen.insert(step.samples.begin(), step.samples.end());
    if (number % kStepsPerEpoch != 0) continue;
    EXPECT_EQ(seen.size(), 120U) << "epoch that ends with step " << number;
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 120U);
    seen.clear();
  }
}

}  // namespace elastic_test
}  // namespace accelerate
