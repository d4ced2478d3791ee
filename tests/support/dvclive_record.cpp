#include "support/dvclive_record.h"

#include <map>
#include <sstream>
#include <string>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::testing {

namespace fs = std::filesystem;

nlohmann::json recorded_dvclive_files(const fs::path& directory) {
  std::map<std::string, nlohmann::json> files;
  for (const auto& each : fs::recursive_directory_iterator(directory)) {
    if (!each.is_regular_file()) continue;
    const std::string text = detail::read_file(each.path());
    nlohmann::json content = text;
    if (each.path().extension() == ".tsv") {
      content = nlohmann::json::array();
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);)
        content.push_back(detail::split(line, '\t'));
    }
    files[each.path().lexically_relative(directory).string()] = content;
  }
  nlohmann::json result = nlohmann::json::array();
  for (const auto& [name, content] : files) result.push_back({name, content});
  return result;
}

}  // namespace accelerate::testing
