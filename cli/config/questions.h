#pragma once

#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "config/files/config_document.h"

namespace accelerate::cli {

using Answers = detail::ConfigJson;

/// One question. A choice has `choices`; else the default's type says what an
/// answer must be.
struct Question {
  std::string key;   ///< of the answer
  std::string text;  ///< without default and punctuation at its end
  detail::ConfigJson default_value;
  /// What is shown, and the answer that it stands for.
  std::vector<std::pair<std::string, detail::ConfigJson>> choices;
  /// Whether it is asked, after what was answered before. Empty: always.
  std::function<bool(const Answers& answers)> applies;
  /// For whole numbers and texts: what is wrong with an answer, or nothing.
  std::function<std::string(const detail::ConfigJson& answer)> complaint;
};

/// Asks one after another. An empty line takes the default; "<" goes back to
/// the question before; what cannot be an answer is said, and asked again.
/// Answers of questions that do not apply are absent. Throws ConfigError when
/// `in` ends.
Answers ask(
    const std::vector<Question>& questions,
    std::istream& in,
    std::ostream& out);

/// The questions of `accelerate-cpp config`, in Accelerate's order.
std::vector<Question> config_questions(int num_devices);

/// The file that the answers amount to.
detail::ConfigJson config_of_answers(const Answers& answers);

}  // namespace accelerate::cli
