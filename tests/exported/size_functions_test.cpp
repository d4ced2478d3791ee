// Functions of sizes compute what Python computes.
#include "exported/graph/size_functions.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::testing::size_functions_test {

c10::IValue call(const std::string& name, std::vector<c10::IValue> arguments) {
  return detail::size_function(name)(arguments);
}

std::int64_t integer(const std::string& name, std::int64_t a, std::int64_t b) {
  return call(name, {a, b}).toInt();
}

TEST(SizeFunctions, DivideTowardsMinusInfinity) {
  EXPECT_EQ(integer("_operator.floordiv", 7, 2), 3);
  EXPECT_EQ(integer("_operator.floordiv", -7, 2), -4);
  EXPECT_EQ(integer("_operator.floordiv", 7, -2), -4);
  EXPECT_EQ(integer("_operator.mod", -7, 2), 1);
  EXPECT_EQ(integer("_operator.mod", 7, -2), -1);
  EXPECT_EQ(call("_operator.truediv", {7, 2}).toDouble(), 3.5);
}

TEST(SizeFunctions, RefuseWhatDoesNotFit) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
  for (const char* name : {"_operator.add", "_operator.mul", "_operator.pow"}) {
    expect_error<ConfigError>([&] { integer(name, kMax, kMax); }, "too large");
  }
  expect_error<ConfigError>(
      [&] { integer("_operator.floordiv", kMin, -1); }, "too large");
  expect_error<ConfigError>(
      [&] { integer("_operator.floordiv", 1, 0); }, "a division by zero");
  expect_error<ConfigError>(
      [&] { integer("_operator.mod", 1, 0); }, "a division by zero");
  expect_error<ConfigError>(
      [&] { call("torch.sym_int", {1e300}); }, "too large");
  expect_error<ConfigError>([&] { call("_operator.add", {1}); }, "lacks");
  EXPECT_EQ(integer("_operator.mod", kMin, -1), 0);
}

TEST(SizeFunctions, KeepIntegersAndPromoteToFloats) {
  EXPECT_EQ(integer("_operator.pow", 3, 4), 81);
  EXPECT_EQ(call("_operator.pow", {2, -1}).toDouble(), 0.5);
  EXPECT_EQ(call("_operator.mul", {2, 0.5}).toDouble(), 1.0);
  EXPECT_EQ(integer("torch.sym_max", 3, 4), 4);
  EXPECT_EQ(call("math.ceil", {2.5}).toInt(), 3);
  EXPECT_EQ(call("math.trunc", {-2.5}).toInt(), -2);
  EXPECT_TRUE(call("_operator.le", {2, 2}).toBool());
  EXPECT_TRUE(call("torch.sym_not", {false}).toBool());
  EXPECT_EQ(call("torch.sym_ite", {true, 3, 4}).toInt(), 3);
}

TEST(SizeFunctions, KnowOnlyPythonsNames) {
  EXPECT_EQ(detail::size_function("_operator.matmul"), nullptr);
}

}  // namespace accelerate::testing::size_functions_test
