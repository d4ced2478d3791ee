// Cases in which dispatching deliberately differs from Accelerate.
#include <algorithm>
#include <set>
#include <string>

#include "oracle/big_model/dispatched_case.h"

namespace accelerate::oracle {

namespace dispatch_departures {

using Names = std::set<std::string>;

bool is_dispatch(const Json& input) { return input.at("kind") == "dispatch"; }

bool failed(const Json& outcome) { return outcome.contains("error"); }

bool both_ran(const Json& input, const Json& found, const Json& expected) {
  return is_dispatch(input) && !failed(found) && !failed(expected);
}

Names names_in(const Json& list) {
  Names names;
  for (const Json& name : list) names.insert(name.get<std::string>());
  return names;
}

Names difference_of(const Json& more, const Json& fewer) {
  Names names = names_in(more);
  for (const Json& name : fewer) names.erase(name.get<std::string>());
  return names;
}

void collect_buffers(
    const Json& module,
    const std::string& prefix,
    bool only_non_persistent,
    Names& names) {
  for (const Json& entry : module.at("buffers")) {
    if (only_non_persistent && entry[1].value("persistent", true)) continue;
    names.insert(prefix + entry[0].get<std::string>());
  }
  for (const Json& child : module.at("children")) {
    collect_buffers(
        child[1],
        prefix + child[0].get<std::string>() + ".",
        only_non_persistent,
        names);
  }
}

Names buffers_of(const Json& input, bool only_non_persistent) {
  Names names;
  collect_buffers(input.at("module"), "", only_non_persistent, names);
  return names;
}

Names tied_names(const Json& input) {
  Names names;
  for (const Json& group : input.at("tied")) names.merge(names_in(group));
  return names;
}

bool is_subset(const Names& part, const Names& whole) {
  return std::includes(whole.begin(), whole.end(), part.begin(), part.end());
}

bool operators_fetch(const Json& input, const Json&, Json& expected) {
  if (!is_dispatch(input) || !expected.contains("trace")) return false;
  expected.erase("trace");
  return true;
}

bool own_log(const Json& input, const Json&, Json& expected) {
  if (!is_dispatch(input) || !expected.contains("warnings")) return false;
  expected.erase("warnings");
  return true;
}

bool compare_given_fields(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!both_ran(input, found, expected)) return false;
  bool is_partial = false;
  for (const auto& [name, value] : found.items()) {
    if (expected.contains(name)) continue;
    expected[name] = value;
    is_partial = true;
  }
  return is_partial;
}

// Tensors that the map names are offloaded, too, and so are buffers that
// Python's state dict would leave out.
bool tensors_are_offloaded(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!both_ran(input, found, expected)) return false;
  Names own = buffers_of(input, /*only_non_persistent=*/true);
  if (input.value("device_map", Json()).is_array())
    for (const Json& pair : input.at("device_map")) own.insert(pair[0]);
  const Names more = difference_of(found.at("away"), expected.at("away"));
  if (more.empty() || !is_subset(more, own) ||
      !difference_of(expected.at("away"), found.at("away")).empty()) {
    return false;
  }
  expected["away"] = found.at("away");
  expected["away_after_forward"] = found.at("away");
  // Then they have the folder's values.
  if (input.value("existing_folder", false)) {
    expected["forward"] = found.at("forward");
    expected["state_dict"] = found.at("state_dict");
  }
  return true;
}

// Accelerate ignores main_device if the map has only one place.
bool main_device_counts(const Json& input, const Json& found, Json& expected) {
  if (!both_ran(input, found, expected) ||
      input.value("main_device", Json()).is_null()) {
    return false;
  }
  for (const Json& pair : input.at("device_map"))
    if (pair[1] != "cpu") return false;
  expected["away"] = found.at("away");
  expected["away_after_forward"] = found.at("away");
  return true;
}

bool forwards_leave_places(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!both_ran(input, found, expected) ||
      expected.at("away_after_forward") == expected.at("away") ||
      found.at("away_after_forward") != found.at("away")) {
    return false;
  }
  expected["away_after_forward"] = found.at("away");
  return true;
}

bool release_fetches(const Json& input, const Json& found, Json& expected) {
  if (!both_ran(input, found, expected) ||
      !found.at("away_after_removal").empty() ||
      expected.at("away_after_removal").empty()) {
    return false;
  }
  expected["away_after_removal"] = Json::array();
  return true;
}

bool ties_last(const Json& input, const Json& found, Json& expected) {
  if (!both_ran(input, found, expected) ||
      expected.at("tied_now") == found.at("tied_now")) {
    return false;
  }
  for (const Json& group : found.at("tied_now"))
    if (!is_subset(names_in(group), tied_names(input))) return false;
  if (!difference_of(Json(tied_names(input)), Json(Names())).empty() &&
      found.at("tied_now").empty()) {
    return false;
  }
  expected["tied_now"] = found.at("tied_now");
  return true;
}

bool what_fails_there_runs(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!both_ran(input, found, expected)) return false;
  bool applies = false;
  for (const char* const part : {"forward", "state_dict"}) {
    if (!failed(expected.at(part)) || failed(found.at(part))) continue;
    expected[part] = found.at(part);
    applies = true;
  }
  return applies;
}

// The runner has compared the outputs with the in-memory model's.
bool what_is_refused_there_runs(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!is_dispatch(input) || !failed(expected) || failed(found)) return false;
  expected = found;
  return true;
}

// Accelerate does not load the buffers of modules on disk.
bool buffers_are_loaded(const Json& input, const Json& found, Json& expected) {
  if (!both_ran(input, found, expected) || !input.contains("checkpoint") ||
      input.at("offload_buffers") == true ||
      !input.at("device_map").is_array()) {
    return false;
  }
  const Names buffers = buffers_of(input, /*only_non_persistent=*/false);
  bool has_some = false;
  for (const Json& pair : input.at("device_map")) {
    const std::string below = pair[0].get<std::string>() + ".";
    if (pair[1] != "disk") continue;
    has_some |= std::any_of(
        buffers.begin(), buffers.end(), [&](const std::string& name) {
          return name.starts_with(below);
        });
  }
  if (!has_some) return false;
  expected["forward"] = found.at("forward");
  expected["state_dict"] = found.at("state_dict");
  return true;
}

// Accelerate leaves out the root module's own tensors.
bool state_dicts_are_whole(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!both_ran(input, found, expected) ||
      !expected.at("state_dict").is_array()) {
    return false;
  }
  Json of_modules = Json::array();
  for (const Json& entry : found.at("state_dict")) {
    const bool is_of_root =
        entry[0].get<std::string>().find('.') == std::string::npos;
    const Json& theirs = expected.at("state_dict");
    if (!is_of_root ||
        std::find(theirs.begin(), theirs.end(), entry) != theirs.end()) {
      of_modules.push_back(entry);
    }
  }
  if (of_modules != expected.at("state_dict") ||
      of_modules == found.at("state_dict")) {
    return false;
  }
  expected["state_dict"] = found.at("state_dict");
  return true;
}

// A folder has one file for tensors that share values, and no file for buffers
// that stay in memory.
bool folders_have_what_is_read(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!both_ran(input, found, expected) || !expected.at("folder").is_object() ||
      !found.at("folder").is_object()) {
    return false;
  }
  Names unread = buffers_of(input, /*only_non_persistent=*/false);
  unread.merge(tied_names(input));
  const Json& theirs = expected.at("folder").at("files");
  const Json& ours = found.at("folder").at("files");
  const auto has = [](const Json& files, const Json& file) {
    return std::find(files.begin(), files.end(), file) != files.end();
  };
  const auto is_unread = [&](const Json& file) {
    const std::string name = file[0];
    return unread.contains(name.substr(0, name.size() - 4));
  };
  for (const Json& file : theirs)
    if (!has(ours, file) && !is_unread(file)) return false;
  for (const Json& file : ours)
    if (!has(theirs, file) && !is_unread(file)) return false;
  const OrderedJson index =
      OrderedJson::parse(found.at("folder").at("index").get<std::string>());
  const OrderedJson whole =
      OrderedJson::parse(expected.at("folder").at("index").get<std::string>());
  for (const auto& [name, entry] : index.items()) {
    if (whole.contains(name) ? whole.at(name) != entry : !unread.contains(name))
      return false;
  }
  if (ours == theirs && index == whole) return false;
  expected["folder"] = found.at("folder");
  return true;
}

// Accelerate's maps need no place for buffers outside the state dict.
bool every_tensor_has_a_place(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!is_dispatch(input) || failed(expected) || !failed(found)) return false;
  const std::string message = found.at("message");
  const std::string phrase = "the device map gives no place to ";
  const auto begin = message.find(phrase);
  if (begin == std::string::npos) return false;
  const auto name_begin = begin + phrase.size();
  const std::string name = message.substr(
      name_begin, message.find_first_of(";,", name_begin) - name_begin);
  if (!buffers_of(input, /*only_non_persistent=*/true).contains(name))
    return false;
  expected = found;
  return true;
}

// Accelerate leaves a tensor without values, and then fails in a forward or
// reads undefined values.
bool missing_values_are_an_error(
    const Json& input,
    const Json& found,
    Json& expected) {
  if (!is_dispatch(input) || failed(expected) || !failed(found)) return false;
  const std::string message = found.at("message");
  if (message.find("does not fit the model") == std::string::npos) return false;
  expected = found;
  return true;
}

}  // namespace dispatch_departures

std::vector<Departure> dispatched_case_departures() {
  using namespace dispatch_departures;
  return {
      {"what dispatching logs has texts of its own", &own_log},
      {"weights are fetched by operators, not by forwards of modules",
       &operators_fetch},
      {"a documented answer has some of the fields", &compare_given_fields},
      {"tensors that a map names are offloaded, too", &tensors_are_offloaded},
      {"main_device counts where the map has one place", &main_device_counts},
      {"a forward leaves every weight in its place", &forwards_leave_places},
      {"release() fetches every weight", &release_fetches},
      {"tied weights stay tied", &ties_last},
      {"forwards and state dicts that fail there work here",
       &what_fails_there_runs},
      {"calls that fail there work here", &what_is_refused_there_runs},
      {"a checkpoint's buffers of modules on the disk are loaded",
       &buffers_are_loaded},
      {"a state dict has the root module's own tensors, too",
       &state_dicts_are_whole},
      {"a folder has what is read", &folders_have_what_is_read},
      {"a map has a place for every tensor", &every_tensor_has_a_place},
      {"a checkpoint that does not fit is an error before anything is loaded",
       &missing_values_are_an_error}};
}

}  // namespace accelerate::oracle
