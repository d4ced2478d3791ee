#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "config/files/config_document.h"

namespace accelerate::cli {

using Answers = detail::ConfigJson;

/// One question. Without `choices`, the answer has the type of the default.
struct Question {
  std::string key;   ///< key of the answer
  std::string text;  ///< without default and final punctuation
  detail::ConfigJson default_value;
  /// Labels, and the answers that they stand for.
  std::vector<std::pair<std::string, detail::ConfigJson>> choices;
  /// Whether to ask, given the earlier answers. Empty: always.
  std::function<bool(const Answers& answers)> applies;
  /// Validates a number or string: returns what is wrong with it, or "".
  std::function<std::string(const detail::ConfigJson& answer)> complaint;
};

/// Asks the questions in order. An empty line selects the default; "<" goes
/// back to the previous question; an invalid answer is explained and asked for
/// again. Answers to questions that do not apply are absent. Throws ConfigError
/// if `in` ends early.
Answers ask(
    const std::vector<Question>& questions,
    std::istream& in,
    std::ostream& out);

/// The questions of `accelerate-cpp config`, in Accelerate's order.
std::vector<Question> config_questions(int num_devices);

/// The values of the config file for these answers.
detail::ConfigJson config_of_answers(const Answers& answers);

}  // namespace accelerate::cli
