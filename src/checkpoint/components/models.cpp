#include "checkpoint/components/models.h"

#include <unordered_map>
#include <utility>

#include <torch/nn/module.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "comm/mesh.h"

namespace accelerate::detail {

namespace {

// Whether this rank is the first rank, from `first` on, that holds the box.
bool is_first_holder(const Layout& layout, const Mesh& mesh, int first) {
  const Mesh own = placement_mesh(layout, mesh);
  for (int other = first; other < own.world().rank(); ++other) {
    bool has_same_box = true;
    for (int i = 0; i < kNumAxes; ++i) {
      const auto axis = static_cast<Axis>(i);
      const bool is_divided =
          axis == Axis::pipeline || layout.is_split_over(axis);
      has_same_box = has_same_box &&
          (!is_divided ||
           coordinate_of(own, other, axis) == own.coordinate(axis));
    }
    if (has_same_box) return false;
  }
  return true;
}

}  // namespace

bool WriterRule::operator()(
    const Layout& layout,
    const Mesh& mesh,
    bool is_saved_elsewhere) const {
  if (first_of_machine) return is_first_holder(layout, mesh, *first_of_machine);
  if (is_saved_elsewhere) return false;
  if (!is_per_node) return is_writer(layout, mesh);
  if (!layout.is_unsharded()) {
    throw ConfigError(
        "[checkpoint] save_on_each_node needs the full model on every node, "
        "but it is sharded over nodes; unset it and save to a file system that "
        "all nodes share");
  }
  return is_first_of_node;
}

void leave_out_other_stages(StoredTensors& saved, const PlacedModel& model) {
  for (const std::string& name : model.table->left_out()) saved.erase(name);
  if (model.others == nullptr) return;
  for (const std::string& name : model.others->names) saved.erase(name);
}

Section model_section(
    const PlacedModel& model,
    std::string name,
    const WriterRule& writes) {
  Section section{std::move(name), {}};
  section.is_stage = model.others != nullptr;
  std::unordered_map<const void*, std::string> known;
  for (const Parameter& row : model.table->rows()) {
    known.emplace(row.tensor.unsafeGetTensorImpl(), row.name);
    const bool is_saved_there =
        model.others != nullptr && model.others->saved_there.contains(row.name);
    section.entries.push_back(
        {row.name,
         row.layout.is_unsharded() ? row.tensor : row.local,
         row.layout,
         writes(row.layout, *model.mesh, is_saved_there)});
  }
  for (const auto& item : model.module->named_parameters()) {
    if (!item.value().defined() || model.table->leaves_out(item.value()))
      continue;
    const std::string key = model.table->name_of(item.key());
    const auto found = known.find(item.value().unsafeGetTensorImpl());
    if (found != known.end() && found->second != key) {
      section.aliases.emplace_back(key, found->second);
    }
  }
  for (const auto& item : model.module->named_buffers()) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined() || model.table->leaves_out(buffer)) continue;
    const std::string key = model.table->name_of(item.key());
    const auto [place, is_new] =
        known.emplace(buffer.unsafeGetTensorImpl(), key);
    if (!is_new) {
      section.aliases.emplace_back(key, place->second);
      continue;
    }
    const Layout full = Layout::unsharded(buffer.sizes().vec());
    section.entries.push_back({key, buffer, full, writes(full, *model.mesh)});
  }
  return section;
}

ModelComponent::ModelComponent(
    std::vector<PlacedModel> models,
    std::vector<bool> is_included,
    WriterRule writes)
    : models_(std::move(models)),
      is_included_(std::move(is_included)),
      writes_(writes) {}

void ModelComponent::collect(CheckpointContents& contents) const {
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (!is_included_[i]) continue;
    contents.sections.push_back(
        model_section(models_[i], numbered("model", i), writes_));
  }
}

std::vector<std::string> ModelComponent::check(
    const CheckpointSource& source,
    const MatchRules& rules) {
  std::vector<std::string> complaints;
  to_load_.clear();
  for (std::size_t i = 0; i < models_.size(); ++i) {
    if (!is_included_[i]) continue;
    const Section section =
        model_section(models_[i], numbered("model", i), writes_);
    const auto saved = source.sections.find(section.name);
    if (saved == source.sections.end()) {
      if (!rules.strict) continue;
      complaints.push_back(format(
          "the checkpoint has no {}; it was saved with fewer "
          "models, or a hook saved it",
          section.name));
      continue;
    }
    ModelToLoad model{saved->second, {}};
    for (const SectionEntry& entry : section.entries) {
      model.destinations.push_back({entry.name, entry.tensor, entry.layout});
    }
    take_other_names(model.saved, section.aliases, rules.skip);
    leave_out_other_stages(model.saved, models_[i]);
    for (std::string& complaint : mismatches(
             section.name,
             model.saved,
             model.destinations,
             section.aliases,
             rules)) {
      complaints.push_back(std::move(complaint));
    }
    to_load_.push_back(std::move(model));
  }
  const std::string next = numbered("model", models_.size());
  if (source.sections.contains(next) && rules.strict) {
    complaints.push_back(format(
        "the checkpoint also has {}, but only {}{} prepared",
        next,
        models_.size(),
        models_.size() == 1 ? " model is" : " models are"));
  }
  return complaints;
}

void ModelComponent::load(const CheckpointSource&, const MatchRules& rules) {
  for (const ModelToLoad& model : to_load_) {
    read_into(model.saved, model.destinations, rules);
  }
}

}  // namespace accelerate::detail
