#include <string>

#include "oracle/plugins/plugins.h"

namespace accelerate::oracle {

Json run_plugins(const Json& input) {
  using namespace topic_plugins;
  const std::string plugin = input.at("plugin");
  if (plugin == "fsdp") return run_fsdp(input);
  if (plugin == "deepspeed") return run_deepspeed(input);
  if (plugin == "parallelism") return run_parallelism_config(input);
  if (plugin == "gradient_accumulation")
    return run_gradient_accumulation(input);
  if (plugin == "dataloader") return run_dataloader(input);
  if (plugin == "project") return run_project(input);
  if (plugin == "dynamo") return run_dynamo(input);
  if (plugin == "handler") return run_handler(input);
  if (plugin == "profile") return run_profile(input);
  if (plugin == "megatron") return run_megatron(input);
  throw NotBuilt("plugins: " + plugin);
}

}  // namespace accelerate::oracle
