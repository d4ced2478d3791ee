#include "support/python_calls.h"

#include <sstream>
#include <string>

#include "base/files/files.h"
#include "trackers/python/tracker_process.h"

namespace accelerate::testing {

namespace fs = std::filesystem;

std::string python_for_tests() {
  // The system's interpreter starts at once; the one in PATH may be a script
  // that looks for others.
  const char* const system = "/usr/bin/python3";
  if (fs::exists(system)) return system;
  return detail::path_of_program("python3", detail::Environment::current());
}

fs::path fake_packages() { return ACCELERATE_FAKE_PACKAGES; }

detail::Environment fake_package_environment(const fs::path& calls) {
  detail::Environment environment = detail::Environment::current();
  environment.set("PYTHONPATH", fake_packages().string());
  environment.set("ACCELERATE_PYTHON", python_for_tests());
  environment.set("PYTHONDONTWRITEBYTECODE", "1");
  environment.set("RECORDED_CALLS", calls.string());
  return environment;
}

nlohmann::json recorded_python_calls(
    const fs::path& calls,
    const fs::path& folder) {
  nlohmann::json result = nlohmann::json::array();
  if (!fs::exists(calls)) return result;
  std::string text = detail::read_file(calls);
  const std::string path = folder.string();
  for (std::size_t at = text.find(path); at != std::string::npos;
       at = text.find(path, at)) {
    text.replace(at, path.size(), "<folder>");
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    result.push_back(nlohmann::json::parse(line));
  return result;
}

}  // namespace accelerate::testing
