#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include <accelerate/accelerate.h>

#include "config/environment.h"
#include "config/settings.h"
#include "oracle/oracle.h"

// The plugins of the topic `plugins`, each in its own file, and how they read a
// case's input.

namespace accelerate::oracle::topic_plugins {

using detail::Environment;
using detail::Settings;

Json run_fsdp(const Json& input);
Json run_deepspeed(const Json& input);
Json run_parallelism_config(const Json& input);
ParallelismConfig parallelism_config_of(const Json& args);
/// The mesh of a configuration: its dimensions, coordinates and groups.
Json mesh_of(const Json& input);
Json run_megatron(const Json& input);
Json run_gradient_accumulation(const Json& input);
Json run_dataloader(const Json& input);
Json run_project(const Json& input);
Json run_dynamo(const Json& input);
Json run_handler(const Json& input);
Json run_profile(const Json& input);

inline std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

inline Environment environment_of(const Json& input) {
  Environment environment;
  for (const auto& [name, value] : input.at("env").items())
    environment.set(name, value);
  return environment;
}

inline Settings settings_of(const Json& input) {
  const std::array sources{
      detail::source_from_environment(environment_of(input))};
  return detail::resolve(sources);
}

// The settings with those arguments for which only the launcher has an option,
// each with its key.
inline Settings settings_of(
    const Json& input,
    std::initializer_list<std::pair<const char*, const char*>> keys) {
  detail::Source flags{.origin = detail::Origin::flag, .values = {}};
  for (const auto& [argument, key] : keys) {
    const Json value = input.at("args").value(argument, Json());
    if (!value.is_null()) flags.add(key, word_of(value), argument);
  }
  const std::array sources{
      flags, detail::source_from_environment(environment_of(input))};
  return detail::resolve(sources);
}

template <class T>
void read(const Json& args, const char* name, std::optional<T>& field) {
  if (args.contains(name) && !args.at(name).is_null())
    field = args.at(name).get<T>();
}

template <class T>
void read(const Json& args, const char* name, T& field) {
  if (args.contains(name) && !args.at(name).is_null())
    args.at(name).get_to(field);
}

template <class T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// The fields that to_kwargs() keeps: those that differ from their defaults.
inline Json differing(const Json& fields, const Json& defaults) {
  Json kept = Json::object();
  for (const auto& [name, value] : fields.items()) {
    if (value != defaults.at(name)) kept[name] = value;
  }
  return kept;
}

}  // namespace accelerate::oracle::topic_plugins
