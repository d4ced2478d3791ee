#pragma once

#include <filesystem>

#include <nlohmann/json.hpp>

#include "config/environment.h"

namespace accelerate::testing {

/// The interpreter's name or path; empty if there is none.
std::string python_for_tests();

/// The directory tests/trackers/fake_packages.
std::filesystem::path fake_packages();

/// Variables that make a Python process import the fake packages and write
/// their calls to a file.
detail::Environment fake_package_environment(
    const std::filesystem::path& calls);

/// The calls in that file, as the oracle's topic "trackers" records them: a
/// list of [what, arguments, named arguments]. "<folder>" stands for `folder`.
nlohmann::json recorded_python_calls(
    const std::filesystem::path& calls,
    const std::filesystem::path& folder);

}  // namespace accelerate::testing
