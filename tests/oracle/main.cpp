// oracle_runner DIR [--topic NAME]...: replays recorded cases.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "oracle/departures.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kShownFailures = 5;

struct Result {
  std::size_t passed = 0;
  std::vector<std::string> failures;
};

std::optional<std::string> run_case(
    const Topic& topic,
    const Json& item,
    const fs::path& directory,
    Departures& departures) {
  Json input = item.at("input");
  if (input.contains("file")) {
    input["file"] = directory / input.at("file").get<std::string>();
  }
  const Json& expected = item.at("expected");
  for (const Json* where :
       std::initializer_list<const Json*>{&input, &expected}) {
    if (where->is_object() && where->contains("directory")) {
      input["path"] = directory / where->at("directory").get<std::string>();
      input["directory"] = where->at("directory");
      if (where->contains("state_dict")) {
        input["state_dict"] = where->at("state_dict");
      }
    }
  }
  Json found;
  try {
    found = topic(input);
  } catch (const NotBuilt& missing) {
    return std::string(": cannot run yet: ") + missing.what();
  } catch (const std::exception& error) {
    found = {{"error", error.what()}};
  }
  const Tolerance tolerance{item.value("rtol", 0.0), item.value("atol", 0.0)};
  const auto differs_from = [&](const char* answer) {
    return departures.difference_from(
        item.at(answer), item.at("input"), found, tolerance);
  };
  const auto differs = differs_from("expected");
  if (differs && item.contains("documented") && !differs_from("documented"))
    return std::nullopt;
  return differs;
}

Result run_topic(
    const Topic& topic,
    const Json& file,
    const fs::path& directory,
    Departures& departures) {
  Result result;
  for (const Json& item : file.at("cases")) {
    if (const auto differs = run_case(topic, item, directory, departures)) {
      result.failures.push_back(item.at("id").get<std::string>() + *differs);
    } else {
      ++result.passed;
    }
  }
  return result;
}

int run(const fs::path& directory, std::vector<std::string> chosen) {
  const bool all = chosen.empty();
  if (all) {
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() == ".json")
        chosen.push_back(entry.path().stem());
    }
    std::sort(chosen.begin(), chosen.end());
  }
  bool failed = chosen.empty();
  for (const std::string& name : chosen) {
    std::ifstream stream(directory / (name + ".json"));
    const Json file = stream ? Json::parse(stream, nullptr, false)
                             : Json(Json::value_t::discarded);
    if (file.is_discarded() || !file.contains("cases")) {
      std::printf(
          "%s: cannot be read from %s\n", name.c_str(), directory.c_str());
      failed = true;
      continue;
    }
    const auto topic = topics().find(name);
    if (topic == topics().end()) {
      std::printf("%s: not built\n", name.c_str());
      failed = failed || !all;
      continue;
    }
    Departures departures = departures_of(name);
    const Result result = run_topic(topic->second, file, directory, departures);
    std::printf(
        "%s: %zu passed, %zu failed\n",
        name.c_str(),
        result.passed,
        result.failures.size());
    for (std::size_t i = 0;
         i < std::min(kShownFailures, result.failures.size());
         ++i) {
      std::printf("  %s\n", result.failures[i].c_str());
    }
    std::printf("%s", departures.report().c_str());
    failed = failed || !result.failures.empty() || result.passed == 0;
    std::fflush(stdout);
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace accelerate::oracle

int main(int argc, char** argv) {
  std::vector<std::string> topics;
  std::string directory;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--topic" && i + 1 < argc) {
      topics.emplace_back(argv[++i]);
    } else if (directory.empty() && !word.starts_with("-")) {
      directory = word;
    } else {
      std::fprintf(stderr, "usage: oracle_runner DIR [--topic NAME]...\n");
      return 2;
    }
  }
  if (directory.empty() || !std::filesystem::is_directory(directory)) {
    std::fprintf(
        stderr,
        "oracle_runner: \"%s\" is not a directory\n",
        directory.c_str());
    return 2;
  }
  return accelerate::oracle::run(directory, std::move(topics));
}
