#include <accelerate/tensor_parallel.h>

#include <algorithm>

#include <torch/nn/modules/embedding.h>

#include <accelerate/detail/divided_program.h>
#include <accelerate/error.h>

#include "base/text/text.h"
#include "modules/name_pattern.h"
#include "parallel/tensor/divide_sequences.h"
#include "parallel/tensor/plan_inference.h"

namespace accelerate {

namespace detail {

namespace {

// Embedding tables smaller than the largest one by this factor are for
// positions or types, where a sum over ranks costs more than it saves.
constexpr std::int64_t kSmallTable = 8;

}  // namespace

PlanInference::PlanInference(const nn::Module& root, int num_ranks)
    : num_ranks_(num_ranks) {
  entries_.push_back({"", &root, {}, {}, {}, false});
  for (const auto& item : root.named_modules({}, /*include_self=*/false)) {
    keep_alive_.push_back(item.value());
    entries_.push_back({item.key(), item.value().get(), {}, {}, {}, false});
  }
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    by_name_.emplace(entries_[i].name, i);
    for (const auto& item : own_parameters(i))
      users_[item.value().unsafeGetTensorImpl()].push_back(i);
  }
}

InferredPlan PlanInference::infer() {
  for (std::size_t i = 0; i < entries_.size(); ++i) divide_program(i);
  for (std::size_t i = 0; i < entries_.size(); ++i) divide_structure(i);
  for (std::size_t i = 0; i < entries_.size(); ++i) divide_names(i);
  for (std::size_t i = 0; i < entries_.size(); ++i) divide_leaf(i);
  InferredPlan result;
  for (const Entry& entry : entries_) {
    if (!entry.is_decided) continue;
    result.decisions.push_back({entry.name, entry.style, entry.why});
    if (entry.style) result.plan.emplace_back(entry.name, *entry.style);
  }
  return result;
}

// The other module that uses a parameter of this one; null if there is none.
const PlanInference::Entry* PlanInference::sharer_of(const Entry& entry) const {
  for (const auto& item : entry.module->named_parameters(/*recurse=*/false)) {
    for (const std::size_t user :
         users_.at(item.value().unsafeGetTensorImpl())) {
      if (&entries_[user] != &entry) return &entries_[user];
    }
  }
  return nullptr;
}

// Why a layer cannot be split along dimension `dim` of its weight; empty if
// it can.
std::string PlanInference::obstacle_to(const Entry& entry, std::int64_t dim)
    const {
  if (const Entry* const other = sharer_of(entry))
    return format("\"{}\" uses its weight as well", other->name);
  const at::Tensor& weight = linear_of(entry)->weight;
  if (weight.size(dim) >= num_ranks_) return {};
  return format(
      "{} {} are fewer than {} ranks",
      weight.size(dim),
      dim == 0 ? "outputs" : "inputs",
      num_ranks_);
}

// Splits `ups` over their outputs, and `down`, which takes them, over its
// inputs.
void PlanInference::divide_pair(
    std::span<Entry* const> ups,
    Entry& down,
    const std::string& structure) {
  for (Entry* const up : ups) {
    decide(
        *up,
        ColwiseParallel{},
        format("{} takes its outputs one by one: {}", down.name, structure));
  }
  decide(down, RowwiseParallel{}, format("takes slices of {}", ups[0]->name));
}

// A program's own plan decides on all of its modules.
void PlanInference::divide_program(std::size_t i) {
  const auto* const program =
      dynamic_cast<const DividedProgram*>(entries_[i].module);
  if (program == nullptr) return;
  const ParallelizePlan plan = program->own_plan();
  const std::string& root = entries_[i].name;
  const std::string prefix = root.empty() ? root : root + ".";
  for (std::size_t j = i + 1; j < entries_.size(); ++j) {
    Entry& entry = entries_[j];
    if (!entry.name.starts_with(prefix)) break;
    if (own_parameters(j).is_empty()) continue;
    const std::string name = entry.name.substr(prefix.size());
    const auto found =
        std::find_if(plan.begin(), plan.end(), [&](const auto& each) {
          return matches_name(each.first, name);
        });
    if (found == plan.end()) {
      decide(entry, std::nullopt, "the model's tp_plan leaves it out");
    } else {
      decide(entry, found->second, "the model's tp_plan says so");
    }
  }
}

// Number of rows of the largest embedding table.
std::int64_t PlanInference::largest_table() const {
  std::int64_t rows = 0;
  for (const Entry& entry : entries_) {
    if (const auto* const table = entry.module->as<nn::EmbeddingImpl>())
      rows = std::max(rows, table->weight.size(0));
  }
  return rows;
}

void PlanInference::divide_leaf(std::size_t i) {
  Entry& entry = entries_[i];
  if (entry.is_decided || own_parameters(i).is_empty()) return;
  if (entry.name.empty()) {
    return decide(
        entry, std::nullopt, "is the model itself, which a plan cannot name");
  }
  if (entry.module->as<nn::EmbeddingImpl>() != nullptr)
    return divide_embedding(entry);
  if (linear_of(entry) == nullptr) {
    return decide(
        entry,
        std::nullopt,
        format(
            "{} is neither a linear layer nor an embedding",
            entry.module->name()));
  }
  if (const Entry* const other = sharer_of(entry);
      other != nullptr && other->module->as<nn::EmbeddingImpl>() != nullptr) {
    return decide(
        entry,
        std::nullopt,
        format(
            "follows the embedding \"{}\", whose weight it uses", other->name));
  }
  if (std::string obstacle = obstacle_to(entry, 0); !obstacle.empty())
    return decide(entry, std::nullopt, std::move(obstacle));
  decide(
      entry,
      ColwiseParallel{.output_layouts = Replicate{}},
      "gathered, since what follows is not known");
}

// Whether some other user of the table does more than multiply by it, as a
// last layer does.
bool PlanInference::is_shared_otherwise(const Entry& entry) const {
  const auto& table = entry.module->as<nn::EmbeddingImpl>()->weight;
  return std::any_of(
      users_.at(table.unsafeGetTensorImpl()).begin(),
      users_.at(table.unsafeGetTensorImpl()).end(),
      [&](std::size_t user) {
        return &entries_[user] != &entry &&
            linear_of(entries_[user]) == nullptr;
      });
}

void PlanInference::divide_embedding(Entry& entry) {
  const auto& table = *entry.module->as<nn::EmbeddingImpl>();
  const std::int64_t rows = table.weight.size(0);
  const std::int64_t largest = largest_table();
  if (typeid(*entry.module) != typeid(nn::EmbeddingImpl)) {
    decide(entry, std::nullopt, "is a class of its own");
  } else if (table.options.max_norm() || table.options.scale_grad_by_freq()) {
    decide(
        entry,
        std::nullopt,
        "has max_norm or scale_grad_by_freq, which need the full table");
  } else if (is_shared_otherwise(entry)) {
    decide(
        entry,
        std::nullopt,
        format("\"{}\" uses its weight as well", sharer_of(entry)->name));
  } else if (rows < num_ranks_) {
    decide(
        entry,
        std::nullopt,
        format("{} rows are fewer than {} ranks", rows, num_ranks_));
  } else if (rows * kSmallTable < largest) {
    decide(
        entry,
        std::nullopt,
        format("{} rows are few beside a table of {}", rows, largest));
  } else {
    decide(entry, RowwiseParallel{}, "vocabulary: each rank looks up its rows");
  }
}

}  // namespace detail

namespace {

// Updates decisions to match a plan in which layers were changed.
void take_styles(InferredPlan& inferred) {
  for (PlanDecision& decision : inferred.decisions) {
    for (const auto& [name, style] : inferred.plan) {
      if (name != decision.module || decision.style == style) continue;
      decision.style = style;
      decision.why += decision.why.empty() ? "" : "; ";
      decision.why += "on slices of the sequence";
    }
  }
}

}  // namespace

InferredPlan infer_parallelize_plan(
    const torch::nn::Module& module,
    int num_ranks,
    bool sequence_parallel) {
  if (num_ranks < 1) {
    throw ConfigError(detail::format(
        "[parallel] the number of ranks of infer_parallelize_plan() must be at "
        "least 1, but is {}",
        num_ranks));
  }
  InferredPlan inferred = detail::PlanInference(module, num_ranks).infer();
  if (sequence_parallel && detail::divide_sequences(module, inferred.plan))
    take_styles(inferred);
  return inferred;
}

}  // namespace accelerate
