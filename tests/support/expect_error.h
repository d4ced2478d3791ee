#pragma once

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accelerate::testing {

/// Expects `body` to throw an E whose message contains `phrase`.
template <class E, class Body>
void expect_error(Body&& body, const std::string& phrase) {
  try {
    std::forward<Body>(body)();
    ADD_FAILURE() << "nothing was thrown; expected: " << phrase;
  } catch (const E& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr(phrase));
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another kind of error was thrown: " << error.what();
  }
}

}  // namespace accelerate::testing
