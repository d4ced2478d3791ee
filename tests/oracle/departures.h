#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "oracle/oracle.h"

namespace accelerate::oracle {

/// A field of recorded outcomes that C++ cannot have. It is left out of every
/// comparison.
struct PythonOnlyField {
  std::string_view owner;  ///< a plugin or handler
  std::string_view name;
  std::string_view reason;
};

/// A kind of case in which this library deliberately answers differently.
struct Departure {
  std::string_view decision;
  /// Changes the recorded outcome into this library's answer. Returns false if
  /// the case, whose answer is `found`, is not of this kind.
  bool (*apply)(const Json& input, const Json& found, Json& expected);
};

/// The rules of a topic, and how often each was used.
class Departures {
 public:
  Departures() = default;
  Departures(
      std::vector<PythonOnlyField> fields,
      std::vector<Departure> departures);

  /// The first difference from the recorded outcome that the rules do not
  /// explain. Nothing if there is none; then the applied rules count as used.
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

/// The rules of the topic `plugins`.
Departures plugin_departures();
/// The rules of the topic `big_model_dispatch`.
Departures big_model_dispatch_departures();
/// The rules of the topic `device_map`.
Departures device_map_departures();
/// The rules of the topic `fp8`.
Departures fp8_departures();
/// The rules of the topic `parallelism`.
Departures parallelism_departures();
/// The rules of the topic `quantization`.
Departures quantization_departures();
/// The rules of the topic `tp_pp`.
Departures tp_pp_departures();

}  // namespace accelerate::oracle
