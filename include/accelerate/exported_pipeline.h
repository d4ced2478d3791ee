#pragma once

#include <accelerate/accelerator.h>
#include <accelerate/export.h>
#include <accelerate/exported_model.h>
#include <accelerate/pipeline.h>
#include <accelerate/prepare_pippy.h>
#include <accelerate/world.h>

namespace accelerate {

/// A pipeline of a model that Python exported, divided where it calls modules:
///
///     accelerate::ExportedModel net = accelerate::load_exported("model.pt2");
///     auto pipeline = accelerate::make_pipeline(
///         accelerator, net, {.split_points = {"model.layers.8"}});
///     auto result = pipeline.step(
///         std::tuple(ids, mask, labels), accelerate::PipelineTensors(),
///         [](const std::map<std::string, torch::Tensor>& outputs,
///            const accelerate::PipelineTensors&) {
///           return outputs.at("loss");
///         });
///
/// `options.split_points` are Python's names of modules: a stage begins with
/// the first operator of each. Without them, stages are divided between the
/// blocks of a transformer, or what else its outermost lists hold, as equally
/// as possible in `options.costs`; Pipeline::stages() has the split points.
///
/// The inputs of step(), evaluate() and forward() are those of
/// ExportedModelImpl::input_names(), in this order or as a map, all with
/// samples along dimension 0; what a later stage needs (labels, say) travels
/// through the stages. The outputs are a map by name, or a tensor for a program
/// with one result without a name.
///
/// Weights of other ranks are never read: they become meta tensors, so that
/// `model` cannot be used any more. Modules that stages share, such as those
/// above the split points, are on no rank; their operators follow the mode,
/// train() or eval(), of the modules below them. Collective. Throws ConfigError
/// if the program cannot be divided this way.
[[nodiscard]] ACCELERATE_API Pipeline make_pipeline(
    const Accelerator& accelerator,
    const ExportedModel& model,
    const PipelineOptions& options = {});

/// Divides a model that Python exported among all ranks of `world`, for
/// inference, like the function for layers (prepare_pippy.h). Call
/// model->eval() first if it has dropout.
ACCELERATE_API PippyModel prepare_pippy(
    const World& world,
    const ExportedModel& model,
    const PreparePippyOptions& options = {});

}  // namespace accelerate
