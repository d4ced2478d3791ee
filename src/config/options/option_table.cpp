#include "config/options/option_table.h"

#include <algorithm>
#include <limits>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

using enum OptionKind;

struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
};

Range range_of(std::string_view limits) {
  Range range;
  const std::size_t dots = limits.find("..");
  if (dots == std::string_view::npos) return range;
  if (const auto low = parse_double(limits.substr(0, dots))) range.low = *low;
  if (const auto high = parse_double(limits.substr(dots + 2)))
    range.high = *high;
  return range;
}

std::string allowed(const OptionSpec& spec) {
  switch (spec.kind) {
    case boolean:
    case truth:
      return "yes or no";
    case text:
      return "a string";
    case choice:
      return "one of " + join(split(spec.limits, '|'), ", ");
    case integer:
    case number:
      break;
  }
  const Range range = range_of(spec.limits);
  std::string out = spec.kind == integer ? "a whole number" : "a number";
  if (range.low > -std::numeric_limits<double>::infinity()) {
    out += format(" of at least {}", range.low);
  }
  if (range.high < std::numeric_limits<double>::infinity()) {
    out += format(" and at most {}", range.high);
  }
  return out;
}

bool within(const OptionSpec& spec, double value) {
  const Range range = range_of(spec.limits);
  return value >= range.low && value <= range.high;
}

// Counts and ranks are of type int, except where the limits say "..2^63".
bool fits(const OptionSpec& spec, std::int64_t value) {
  return spec.limits.ends_with("..2^63") ||
      (value >= std::numeric_limits<int>::min() &&
       value <= std::numeric_limits<int>::max());
}

std::optional<OptionValue> try_parse(
    const OptionSpec& spec,
    std::string_view text) {
  switch (spec.kind) {
    case boolean:
    case truth:
      if (const auto value = parse_bool(text)) return *value;
      break;
    case integer:
      if (const auto value = parse_int(text); value && fits(spec, *value) &&
          within(spec, static_cast<double>(*value))) {
        return std::int64_t{*value};
      }
      break;
    case number:
      if (const auto value = parse_double(text); value && within(spec, *value))
        return *value;
      break;
    case choice:
      for (std::string& candidate : split(spec.limits, '|')) {
        if (to_lower(candidate) == to_lower(text)) return std::move(candidate);
      }
      break;
    case OptionKind::text:
      // The launcher passes settings on as JSON.
      if (is_utf8(text)) return std::string(text);
      break;
  }
  return std::nullopt;
}

}  // namespace

const OptionSpec* find_option(std::string_view key) {
  const auto table = option_table();
  const auto found = std::ranges::find(table, key, &OptionSpec::key);
  return found == table.end() ? nullptr : &*found;
}

const OptionSpec* find_option_of_variable(std::string_view variable) {
  const auto table = option_table();
  const auto found = std::ranges::find(table, variable, &OptionSpec::variable);
  return found == table.end() || variable.empty() ? nullptr : &*found;
}

bool is_default(const OptionSpec& spec, const OptionValue& value) {
  for (const std::string_view text :
       {spec.default_value, spec.default_for_python()}) {
    if (!text.empty() && value == parse_option(spec, text)) return true;
  }
  return false;
}

bool is_written_by_default(const OptionSpec& spec, const OptionValue& value) {
  const std::vector<std::string> written = split(spec.written_by_default, '|');
  return std::ranges::any_of(written, [&](const std::string& text) {
    return !text.empty() && value == parse_option(spec, text);
  });
}

OptionValue parse_option(const OptionSpec& spec, std::string_view text) {
  if (auto value = try_parse(spec, trim(text))) return *value;
  std::string wanted = allowed(spec);
  const auto number =
      spec.kind == integer ? parse_int(trim(text)) : std::nullopt;
  if (number && !fits(spec, *number))
    wanted += format(", at most {}", std::numeric_limits<int>::max());
  throw ConfigError(
      format("[config] {} is \"{}\", but must be {}", spec.key, text, wanted));
}

std::string format_option(const OptionValue& value) {
  struct Formatter {
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(std::int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return format("{}", v); }
    std::string operator()(const std::string& v) const { return v; }
  };
  return std::visit(Formatter{}, value);
}

namespace {

constexpr std::string_view kPageBegin =
    "# Options\n\n"
    "Every setting has one name in the config file and, where given, a flag of "
    "`accelerate-cpp launch` and an environment\n"
    "variable. Code wins over the command line, the command line over the "
    "environment, the environment over the file, the\n"
    "file over the default; every resolved value knows which of them it came "
    "from.\n\n"
    "This page is printed by `accelerate-cpp options`; a test keeps the two "
    "equal, and another compares the marks with what\n"
    "reads the settings. No mark: the library acts on the setting, under any "
    "launcher, or rejects what it does not support.\n"
    "`l`: only `accelerate-cpp launch` acts on it. `py` is passed to Python "
    "programs and has no effect on programs of this\n"
    "library yet, `py!` never will. `-`: it has no effect, and is accepted "
    "because Accelerate's files and command lines have\n"
    "it. A setting without effect is reported once, by the launcher or at the "
    "first step of the optimizer.\n\n"
    "The default is this library's; Python programs get Accelerate's where it "
    "differs.\n";

constexpr std::string_view kPageEnd =
    "\n"
    "In the file, keys that begin with `parallelism_config_`, `fsdp_`, "
    "`megatron_lm_`, `dynamo_` and `fp8_` live in a map of\n"
    "that name, as in Accelerate's files, and DeepSpeed's in "
    "`deepspeed_config`, MPI's in `mpirun_config`. A key that\n"
    "neither knows, such as one for a single launch (`use_fsdp`; files have "
    "`distributed_type`), is an error that names the\n"
    "nearest one. The schema, config.schema.json, lists those of a file.\n";

std::string as_code(std::string_view content) {
  return content.empty() ? std::string() : format("`{}`", content);
}

std::string default_of(const OptionSpec& spec) {
  if (!spec.python_default) return as_code(spec.default_value);
  return format(
      "{}{}Python: {}",
      as_code(spec.default_value),
      spec.default_value.empty() ? "" : "; ",
      spec.python_default->empty() ? "unset" : as_code(*spec.python_default));
}

std::string_view mark_of(OptionUse use) {
  switch (use) {
    case OptionUse::acts:
      break;
    case OptionUse::launches:
      return "l";
    case OptionUse::unused:
      return "-";
    case OptionUse::carried:
      return "py";
    case OptionUse::python_only:
      return "py!";
  }
  return "";
}

// One line, so that a search for a name finds all there is about it.
std::string entry(const OptionSpec& spec) {
  std::string text = format("* **`{}`**", spec.key);
  for (const std::string_view name : {spec.flag, spec.variable}) {
    if (!name.empty()) text += format(", `{}`", name);
  }
  if (const std::string_view mark = mark_of(spec.use); !mark.empty())
    text += format(" (`{}`)", mark);
  text += format("<br>{}<br>*{}", spec.help, allowed(spec));
  if (const std::string value = default_of(spec); !value.empty())
    text += "; default: " + value;
  return text + "*\n";
}

}  // namespace

std::string options_page() {
  std::string page(kPageBegin);
  std::string_view group;
  for (const OptionSpec& spec : option_table()) {
    if (spec.group != group) {
      group = spec.group;
      page += format("\n## {}\n\n", group);
    }
    page += entry(spec);
  }
  page += kPageEnd;
  return page;
}

}  // namespace accelerate::detail
