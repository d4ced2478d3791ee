#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// A field of recorded outcomes that C++ cannot have. It is left out of the
/// comparison, wherever such an outcome has it.
struct PythonOnlyField {
  std::string_view owner;  ///< a plugin, or a handler
  std::string_view name;
  std::string_view reason;
};

/// A kind of case in which this library answers differently by decision.
struct Departure {
  std::string_view decision;
  /// Changes the recorded outcome into what this library answers. Returns false
  /// if the case, which was answered by `found`, is not of this kind.
  bool (*apply)(const Json& input, const Json& found, Json& expected);
};

/// The rules of one topic, and how often each was used.
class Departures {
 public:
  Departures() = default;
  Departures(
      std::vector<PythonOnlyField> fields,
      std::vector<Departure> departures);

  /// The first difference between an outcome and the recorded one, but for what
  /// the rules say; nothing if they agree, and then the rules that this took
  /// count as used.
  std::optional<std::string> difference_from(
      const Json& recorded,
      const Json& input,
      const Json& found,
      const Tolerance& tolerance);

  /// One line per rule, for the log; empty without rules.
  [[nodiscard]] std::string report() const;

 private:
  template <class Rule>
  struct Counted {
    Rule rule;
    std::size_t uses = 0;
  };

  std::vector<Counted<PythonOnlyField>*> leave_out(
      const Json& input,
      Json& expected);

  std::vector<Counted<PythonOnlyField>> fields_;
  std::vector<Counted<Departure>> departures_;
};

/// The rules of a topic; most have none.
Departures departures_of(const std::string& topic);

/// Those of the topic `plugins`.
Departures plugin_departures();
/// Those of the topic `big_model_dispatch`.
Departures big_model_dispatch_departures();
/// Those of the topic `device_map`.
Departures device_map_departures();
/// Those of the topic `fp8`.
Departures fp8_departures();
/// Those of the topic `parallelism`.
Departures parallelism_departures();
/// Those of the topic `quantization`.
Departures quantization_departures();
/// Those of the topic `tp_pp`.
Departures tp_pp_departures();

}  // namespace accelerate::oracle
