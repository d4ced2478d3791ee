#pragma once

#include <sstream>
#include <utility>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace accelerate::testing {

/// Expects the property to hold for `num_cases` random cases; a failure prints
/// the smallest failing case found. RC_PARAMS=max_success=1000, which is ten
/// times rapidcheck's own number, tries ten times as many.
template <class Property>
void expect_law(int num_cases, Property&& property) {
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  const int usual = rc::detail::TestParams().maxSuccess;
  params.maxSuccess = static_cast<int>(
      static_cast<double>(num_cases) * params.maxSuccess / usual);
  const auto result = rc::detail::checkTestable(
      std::forward<Property>(property), rc::detail::TestMetadata(), params);
  std::ostringstream text;
  rc::detail::printResultMessage(result, text);
  EXPECT_TRUE(result.template is<rc::detail::SuccessResult>()) << text.str();
}

}  // namespace accelerate::testing
