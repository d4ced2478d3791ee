#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include <accelerate/parallel.h>

#include "checkpoint/components/component.h"
#include "params/parameter_table.h"

namespace torch::nn {
class Module;
}

namespace accelerate::detail {

/// What the other pipeline stages of this rank's model have.
struct OtherStages {
  /// Names of tensors that only other ranks have.
  std::set<std::string> names;
  /// Names of this rank's parameters that an earlier stage also has and saves.
  std::set<std::string> saved_there;
};

/// A module with the layouts of its parameters; borrowed.
struct PlacedModel {
  const torch::nn::Module* module = nullptr;
  const ParameterTable* table = nullptr;
  const Mesh* mesh = nullptr;
  /// Null for a whole model.
  const OtherStages* others = nullptr;
};

/// Removes what other stages load, and tensors without a row because they are
/// offloaded.
void leave_out_other_stages(StoredTensors& saved, const PlacedModel& model);

/// Decides whether this rank writes a tensor.
struct WriterRule {
  /// The first rank of each node writes to the node's own disk.
  bool is_per_node = false;
  bool is_first_of_node = true;
  /// Set to the first rank of this rank's machine if each machine writes what
  /// its own ranks hold, whatever other machines do.
  std::optional<int> first_of_machine = std::nullopt;

  /// Whether this rank writes a tensor. If an earlier pipeline stage writes it
  /// too, this rank writes it only if that stage may be on another machine.
  /// Throws ConfigError for a sharded tensor if `is_per_node`.
  [[nodiscard]] bool operator()(
      const Layout& layout,
      const Mesh& mesh,
      bool is_saved_elsewhere = false) const;
};

/// The tensors of a model: parameters, then buffers, each once.
Section model_section(
    const PlacedModel& model,
    std::string name,
    const WriterRule& writes);

/// Parameters and buffers of all models.
class ModelComponent final : public CheckpointComponent {
 public:
  /// `is_included`: one entry per model.
  ModelComponent(
      std::vector<PlacedModel> models,
      std::vector<bool> is_included,
      WriterRule writes);

  [[nodiscard]] std::string_view key() const override { return "models"; }
  void collect(CheckpointContents& contents) const override;
  [[nodiscard]] std::vector<std::string> check(
      const CheckpointSource& source,
      const MatchRules& rules) override;
  void load(const CheckpointSource& source, const MatchRules& rules) override;

 private:
  /// A model's saved tensors and their destinations.
  struct ModelToLoad {
    StoredTensors saved;
    std::vector<Destination> destinations;
  };

  std::vector<PlacedModel> models_;
  std::vector<bool> is_included_;
  WriterRule writes_;
  std::vector<ModelToLoad> to_load_;
};

}  // namespace accelerate::detail
