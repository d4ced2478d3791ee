#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "support/temporary_directory.h"
#include "trackers/tracker_request.h"

namespace accelerate::testing {

/// A case of the oracle's topic "trackers" whose kind is a tracker's name: what
/// that tracker is made from, and the outcome.
class TrackerCase {
 public:
  explicit TrackerCase(const nlohmann::ordered_json& input);

  /// The tracker's name.
  [[nodiscard]] std::string kind() const { return input_.at("kind"); }
  /// A request for files in a directory of this case, or for calls in one of
  /// the packages of tests/trackers/fake_packages.
  [[nodiscard]] detail::TrackerRequest request() const;
  /// The layout of the case's images: packages get what was logged as it is.
  [[nodiscard]] std::string layout() const;
  /// The outcome in the recorded form, with `failure`: null or an error's
  /// message.
  [[nodiscard]] nlohmann::json outcome(const nlohmann::json& failure) const;

 private:
  nlohmann::ordered_json input_;
  TemporaryDirectory directory_;
};

/// Whether a case's tracker makes its calls in a Python package.
bool needs_python(const nlohmann::ordered_json& input);

/// Makes the tracker by its name, makes the case's calls on it, and returns the
/// outcome.
nlohmann::json play_on_tracker(const nlohmann::ordered_json& input);

/// Runs a case of the kind "filter".
nlohmann::json choose_trackers(const nlohmann::ordered_json& input);

}  // namespace accelerate::testing
