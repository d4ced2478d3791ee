#pragma once

#include <sstream>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace accelerate::testing {

/// Expects the property to hold for random cases; a failure prints the smallest
/// failing case found.
template <class Property>
void expect_law(int num_cases, Property&& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = num_cases;
  const auto result = rc::detail::checkTestable(
      std::forward<Property>(property), rc::detail::TestMetadata(), params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << text.str();
}

}  // namespace accelerate::testing
