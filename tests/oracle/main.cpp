// oracle_runner DIR [--topic NAME]... [--kind NAME]...: replays recorded cases.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "oracle/departures.h"
#include "oracle/oracle.h"

namespace accelerate::oracle {
namespace {

namespace fs = std::filesystem;

struct Result {
  std::size_t passed = 0;
  std::vector<std::string> failures;
  /// Why cases were skipped.
  std::vector<std::string> skipped;
};

std::optional<std::string> run_case(
    const Topic& topic,
    const OrderedJson& item,
    const fs::path& directory,
    Departures& departures) {
  OrderedJson input = item.at("input");
  if (input.contains("file")) {
    input["file"] = directory / input.at("file").get<std::string>();
  }
  const OrderedJson& expected = item.at("expected");
  for (const OrderedJson* where :
       std::initializer_list<const OrderedJson*>{&input, &expected}) {
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
  } catch (const Skipped&) {
    throw;
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
    const OrderedJson& file,
    const fs::path& directory,
    const std::set<std::string>& kinds,
    Departures& departures) {
  Result result;
  for (const OrderedJson& item : file.at("cases")) {
    if (!kinds.empty() && !kinds.contains(item.at("input").value("kind", "")))
      continue;
    try {
      if (const auto differs = run_case(topic, item, directory, departures)) {
        result.failures.push_back(item.at("id").get<std::string>() + *differs);
      } else {
        ++result.passed;
      }
    } catch (const Skipped& reason) {
      result.skipped.emplace_back(reason.what());
    }
  }
  return result;
}

void print(const std::string& topic, const Result& result) {
  std::printf(
      "%s: %zu passed, %zu failed",
      topic.c_str(),
      result.passed,
      result.failures.size());
  if (!result.skipped.empty()) {
    std::printf(
        ", %zu skipped (%s)",
        result.skipped.size(),
        result.skipped.front().c_str());
  }
  std::printf("\n");
  for (const std::string& failure : result.failures)
    std::printf("  %s\n", failure.c_str());
}

int run(
    const fs::path& directory,
    std::vector<std::string> chosen,
    const std::set<std::string>& kinds) {
  const bool all = chosen.empty();
  if (all) {
    for (const auto& entry : fs::directory_iterator(directory)) {
      if (entry.path().extension() == ".json")
        chosen.push_back(entry.path().stem());
    }
    // This topic runs last: its pretend device stays for the rest of the
    // process.
    const auto is_without_device = [](const std::string& name) {
      return name != "big_model_dispatch";
    };
    std::sort(chosen.begin(), chosen.end());
    std::stable_partition(chosen.begin(), chosen.end(), is_without_device);
  }
  bool failed = chosen.empty();
  for (const std::string& name : chosen) {
    std::ifstream stream(directory / (name + ".json"));
    const OrderedJson file = stream
        ? OrderedJson::parse(stream, nullptr, false)
        : OrderedJson(OrderedJson::value_t::discarded);
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
    const Result result =
        run_topic(topic->second, file, directory, kinds, departures);
    print(name, result);
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
  std::set<std::string> kinds;
  std::string directory;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--topic" && i + 1 < argc) {
      topics.emplace_back(argv[++i]);
    } else if (word == "--kind" && i + 1 < argc) {
      kinds.emplace(argv[++i]);
    } else if (directory.empty() && !word.starts_with("-")) {
      directory = word;
    } else {
      std::fprintf(
          stderr,
          "usage: oracle_runner DIR [--topic NAME]... [--kind NAME]...\n");
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
  return accelerate::oracle::run(directory, std::move(topics), kinds);
}
