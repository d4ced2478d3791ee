#include "oracle/plugins/plugins.h"
#include "train/accelerator/decisions.h"

namespace accelerate::oracle::topic_plugins {

namespace {

Json accumulation_fields(const GradientAccumulationOptions& options) {
  return {
      {"num_steps", json_of(options.num_steps)},
      {"sync_with_dataloader", options.sync_with_dataloader},
      {"sync_each_batch", options.sync_each_batch}};
}

}  // namespace

Json run_gradient_accumulation(const Json& input) {
  const Json& args = input.at("args");
  AcceleratorOptions options;
  // 1 is the default in Python, so it does not count as given.
  if (const Json& steps = input.at("accelerator_steps");
      !steps.is_null() && steps != 1) {
    options.gradient_accumulation_steps = steps.get<int>();
  }
  GradientAccumulationOptions& plugin = options.gradient_accumulation;
  read(args, "num_steps", plugin.num_steps);
  read(args, "sync_with_dataloader", plugin.sync_with_dataloader);
  read(args, "sync_each_batch", plugin.sync_each_batch);
  return {
      {"to_kwargs",
       args.empty()
           ? Json(nullptr)
           : differing(accumulation_fields(plugin), accumulation_fields({}))},
      {"num_steps", detail::accumulation_window(options, settings_of(input))},
      // Always false in effect in Accelerate (Q1); no setting here.
      {"adjust_scheduler", false},
      {"sync_with_dataloader", plugin.sync_with_dataloader}};
}

Json run_dataloader(const Json& input) {
  const Json& args = input.at("args");
  // Positions are saved by default here.
  DataLoaderConfiguration options{.use_stateful_dataloader = false};
  read(args, "split_batches", options.split_batches);
  read(args, "dispatch_batches", options.dispatch_batches);
  read(args, "even_batches", options.even_batches);
  read(args, "use_seedable_sampler", options.use_seedable_sampler);
  read(args, "data_seed", options.data_seed);
  read(args, "non_blocking", options.non_blocking);
  read(args, "use_stateful_dataloader", options.use_stateful_dataloader);
  return {
      {"fields",
       {{"split_batches", options.split_batches},
        {"dispatch_batches", json_of(options.dispatch_batches)},
        {"even_batches", options.even_batches},
        {"use_seedable_sampler", options.use_seedable_sampler},
        {"data_seed", json_of(options.data_seed)},
        {"non_blocking", options.non_blocking},
        {"use_stateful_dataloader", options.use_stateful_dataloader}}}};
}

Json run_project(const Json& input) {
  const Json& args = input.at("args");
  ProjectConfiguration project;
  read(args, "project_dir", project.project_dir);
  read(args, "logging_dir", project.logging_dir);
  read(
      args, "automatic_checkpoint_naming", project.automatic_checkpoint_naming);
  read(args, "total_limit", project.total_limit);
  read(args, "iteration", project.iteration);
  read(args, "save_on_each_node", project.save_on_each_node);
  if (!input.at("set_directories").is_null())
    project.set_directories(input.at("set_directories"));
  const auto text = [](const std::string& word) {
    return word.empty() ? Json(nullptr) : Json(word);
  };
  return {
      {"fields",
       {{"project_dir", text(project.project_dir)},
        {"logging_dir",
         text(
             project.logging_dir.empty() ? project.project_dir
                                         : project.logging_dir)},
        {"automatic_checkpoint_naming", project.automatic_checkpoint_naming},
        {"total_limit", json_of(project.total_limit)},
        {"iteration", json_of(project.iteration)},
        {"save_on_each_node", project.save_on_each_node}}}};
}

}  // namespace accelerate::oracle::topic_plugins
