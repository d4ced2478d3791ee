#include "cli/config/questions.h"

#include <istream>
#include <optional>
#include <ostream>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::cli {

namespace {

using detail::ConfigJson;
using detail::format;

constexpr std::string_view kBack = "<";

std::string shown_default(const Question& question) {
  if (question.default_value.is_null()) return "";
  if (question.default_value.is_boolean()) {
    return question.default_value.get<bool>() ? " [YES/no]" : " [yes/NO]";
  }
  for (std::size_t i = 0; i < question.choices.size(); ++i) {
    if (question.choices[i].second == question.default_value) {
      return format(" [{}]", i + 1);
    }
  }
  return format(" [{}]", detail::python_text(question.default_value));
}

void show(const Question& question, std::ostream& out) {
  if (question.choices.empty()) {
    out << question.text << shown_default(question) << ": " << std::flush;
    return;
  }
  out << question.text << "\n";
  for (std::size_t i = 0; i < question.choices.size(); ++i) {
    out << "  " << i + 1 << ") " << question.choices[i].first << "\n";
  }
  out << "Number" << shown_default(question) << ": " << std::flush;
}

std::optional<ConfigJson> parse_choice(
    const Question& question,
    const std::string& text) {
  const auto number = detail::parse_int(text);
  for (std::size_t i = 0; i < question.choices.size(); ++i) {
    const auto& [label, value] = question.choices[i];
    const bool is_meant = number == static_cast<long long>(i) + 1 ||
        detail::to_lower(text) == detail::to_lower(label);
    if (is_meant) return value;
  }
  return std::nullopt;
}

// Returns nothing, with the reason in `problem`, if the text is not an answer.
std::optional<ConfigJson> parse_answer(
    const Question& question,
    const std::string& text,
    std::string& problem) {
  if (text.empty() && !question.default_value.is_null()) {
    return question.default_value;
  }
  std::optional<ConfigJson> answer;
  if (!question.choices.empty()) {
    answer = parse_choice(question, text);
    problem =
        format("Please enter a number from 1 to {}.", question.choices.size());
  } else if (question.default_value.is_boolean()) {
    if (const auto word = detail::parse_bool(text)) answer = *word;
    problem = "Please enter yes or no.";
  } else if (question.default_value.is_number_integer()) {
    if (const auto number = detail::parse_int(text)) answer = *number;
    problem = "Please enter a whole number.";
  } else if (question.default_value.is_number_float()) {
    if (const auto number = detail::parse_double(text)) answer = *number;
    problem = "Please enter a number.";
  } else {
    if (!text.empty()) answer = text;
    problem = "Please enter something: there is no default.";
  }
  if (answer && question.complaint) {
    problem = question.complaint(*answer);
    if (!problem.empty()) return std::nullopt;
  }
  return answer;
}

}  // namespace

Answers ask(
    const std::vector<Question>& questions,
    std::istream& in,
    std::ostream& out) {
  Answers answers = Answers::object();
  std::vector<std::size_t> asked;
  for (std::size_t i = 0; i < questions.size();) {
    const Question& question = questions[i];
    if (question.applies && !question.applies(answers)) {
      ++i;
      continue;
    }
    show(question, out);
    std::string line;
    if (!std::getline(in, line)) {
      throw ConfigError(
          "[config] the answers ended before the "
          "questions; nothing was written");
    }
    const std::string text(detail::trim(line));
    if (text == kBack) {
      if (!asked.empty()) {
        i = asked.back();
        asked.pop_back();
        answers.erase(questions[i].key);
      }
      continue;
    }
    std::string problem;
    const auto answer = parse_answer(question, text, problem);
    if (!answer) {
      out << problem << "\n";
      continue;
    }
    answers[question.key] = *answer;
    asked.push_back(i++);
  }
  return answers;
}

}  // namespace accelerate::cli
