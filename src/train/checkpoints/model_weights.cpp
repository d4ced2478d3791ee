#include <accelerate/model_weights.h>

#include <string>

#include <torch/nn/module.h>

#include <accelerate/accelerator.h>

#include "base/text/text.h"
#include "checkpoint/weights/prepared_weights.h"
#include "train/checkpoints/checkpoint_components.h"
#include "train/models/staged_model.h"
#include "train/session/session.h"
#include "train/step/step_watch.h"

namespace accelerate::detail {

namespace {

void require_prepared(const PreparedModel& model) {
  if (model.module == nullptr) throw_released("the model again");
}

void save_prepared(
    const PreparedModel& model,
    const std::filesystem::path& directory,
    const SaveModelOptions& options) {
  require_prepared(model);
  require_no_join(*model.session, "save_model()");
  follow_modules(model.session->prepared);
  const auto whole = whole_model(model);
  save_weights(
      *model.session->services.checkpoints,
      whole ? whole->placed() : placed(model),
      directory,
      options);
}

void load_prepared(
    PreparedModel& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options) {
  require_prepared(model);
  require_no_join(*model.session, "load_model()");
  follow_modules(model.session->prepared);
  load_weights(
      *model.session->services.checkpoints,
      placed(model),
      path,
      options,
      options.broadcast_from_rank0.value_or(model.placement.reads_on_rank_0));
  model.placement.awaits_values = false;
  model.session->prepared.step_watch->forget();
  model.strategies.after_load();
}

}  // namespace

WeightList weights_of(
    const PreparedModel& model,
    const StateDictOptions& options) {
  require_prepared(model);
  follow_modules(model.session->prepared);
  const bool is_whole = options.type == StateDictType::full_state_dict;
  const auto whole = is_whole ? whole_model(model) : nullptr;
  const PlacedModel placed_model = whole ? whole->placed() : placed(model);
  if (gathers_weights(placed_model, options)) {
    require_no_join(*model.session, "get_state_dict()");
  }
  return collect_weights(
      *model.session->services.checkpoints, placed_model, options);
}

std::vector<WeightShard> shards_of(const PreparedModel& model) {
  require_prepared(model);
  follow_modules(model.session->prepared);
  const WriterRule writes = model.session->services.checkpoints->writer_rule();
  std::vector<WeightShard> shards;
  for (const SectionEntry& entry :
       model_section(placed(model), "model", writes).entries) {
    for (const LayoutPiece& piece : pieces_of(entry.layout)) {
      shards.push_back(
          {entry.name,
           rows_of(entry.tensor, piece),
           piece.layout.offset,
           entry.layout.global_shape});
    }
  }
  return shards;
}

}  // namespace accelerate::detail

namespace accelerate {

void Accelerator::save_model(
    const detail::ModelReference& model,
    const std::filesystem::path& directory,
    const SaveModelOptions& options) const {
  detail::save_prepared(model.prepared, directory, options);
}

void Accelerator::load_model(
    const detail::ModelReference& model,
    const std::filesystem::path& path,
    const LoadModelOptions& options) const {
  detail::load_prepared(model.prepared, path, options);
}

WeightList Accelerator::get_state_dict(
    const detail::ModelReference& model,
    const StateDictOptions& options) const {
  return detail::weights_of(model.prepared, options);
}

std::string describe(const detail::ModelReference& model) {
  follow_modules(model.prepared.session->prepared);
  std::string text;
  for (const detail::Parameter& row : model.prepared.table.rows()) {
    text += detail::format(
        "{}: {} {}{}{}{}\n",
        row.name,
        c10::toString(row.local.scalar_type()),
        at::IntArrayRef(row.layout.global_shape),
        row.tensor.requires_grad() ? "" : ", frozen",
        row.policy.empty() ? ", full on every rank" : ", ",
        row.policy);
  }
  return text;
}

}  // namespace accelerate
