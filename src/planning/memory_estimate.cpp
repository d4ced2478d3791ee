#include "planning/memory_estimate.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include <accelerate/error.h>

#include "base/text/sizes.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

void note(
    LargestLayers& largest,
    const std::string& name,
    std::uint64_t num_bytes) {
  if (num_bytes > largest.num_bytes) largest = {num_bytes, {}};
  if (num_bytes == largest.num_bytes) largest.names.push_back(name);
}

// `name`: name of the module. Children append theirs while they are visited, so
// that long names are not copied for each level.
void visit(
    LargestLayers& largest,
    std::string& name,
    const ModuleNode& module,
    const WrapPolicy& no_split) {
  if (module.children.empty() || is_one_of(module, no_split.class_names)) {
    note(largest, name, total_bytes(module));
    return;
  }
  const std::size_t size = name.size();
  for (const ModuleNode& child : module.children) {
    name += '.';
    name += child.name;
    visit(largest, name, child, no_split);
    name.resize(size);
  }
}

std::size_t characters(std::string_view text) {
  // UTF-8 continuation bytes do not count.
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

// Centers text as Python's str.center(): if the padding is odd, the extra space
// goes to the left in an odd width, otherwise to the right.
std::string centered(const std::string& text, std::size_t width) {
  const std::size_t size = characters(text);
  if (size >= width) return text;
  const std::size_t padding = width - size;
  const std::size_t left = padding / 2 + (padding & width & 1U);
  return std::string(left, ' ') + text + std::string(padding - left, ' ');
}

std::string line_of(std::size_t length) {
  std::string line;
  for (std::size_t i = 0; i < length; ++i) line += "─";
  return line;
}

// Formats a size as Python prints a quotient: integers with ".0".
std::string quotient(double bytes, const std::string& dtype) {
  std::string text = format_size(bytes);
  const bool is_integer = text.find('.') == std::string::npos;
  if (dtype != "float32" && is_integer) text.insert(text.find(' '), ".0");
  return text;
}

constexpr std::size_t kColumns = 4;
using Row = std::array<std::string, kColumns>;
using Widths = std::array<std::size_t, kColumns>;

std::string rule(
    const Widths& widths,
    std::string_view left,
    std::string_view middle,
    std::string_view right) {
  std::string text(left);
  for (std::size_t i = 0; i < kColumns; ++i) {
    if (i > 0) text += middle;
    text += line_of(widths[i]);
  }
  return text + std::string(right) + "\n";
}

std::string cells(const Row& row, const Widths& widths) {
  std::string text = "│";
  for (std::size_t i = 0; i < kColumns; ++i) {
    text += centered(row[i], widths[i]) + "│";
  }
  return text + "\n";
}

}  // namespace

LargestLayers largest_layers(
    const ModuleNode& root,
    const WrapPolicy& no_split) {
  LargestLayers largest;
  for (const auto& tensor : root.parameters) {
    note(largest, tensor.name, tensor.num_bytes);
  }
  for (const ModuleNode& child : root.children) {
    std::string name = child.name;
    visit(largest, name, child, no_split);
  }
  return largest;
}

MemoryEstimate estimate_memory(
    const std::string& dtype,
    std::uint64_t largest_layer,
    std::uint64_t total) {
  double divisor = 1;
  if (dtype == "float16" || dtype == "bfloat16") {
    divisor = 2;
  } else if (dtype == "int8") {
    divisor = 4;
  } else if (dtype == "int4") {
    divisor = 8;
  } else if (dtype != "float32") {
    throw ConfigError(format(
        "[planning] the dtype must be float32, float16, bfloat16, int8 or "
        "int4, but is \"{}\"",
        dtype));
  }
  MemoryEstimate estimate{
      dtype,
      static_cast<double>(largest_layer) / divisor,
      static_cast<double>(total) / divisor,
      {}};
  const auto full = static_cast<std::int64_t>(total);
  if (dtype == "float32") {
    estimate.training = {full, full, 2 * full, 4 * full};
  } else if (divisor == 2) {
    estimate.training = {full, full + full / 2, 2 * full, 2 * full};
  }
  return estimate;
}

std::string memory_table(
    const std::string& model,
    const std::vector<MemoryEstimate>& estimates) {
  std::vector<Row> rows{
      {"dtype", "Largest Layer", "Total Size", "Training using Adam"}};
  for (const MemoryEstimate& each : estimates) {
    const auto most = std::max(
        {each.training.model,
         each.training.gradients,
         each.training.optimizer,
         each.training.step});
    rows.push_back(
        {each.dtype,
         quotient(each.largest_layer, each.dtype),
         quotient(each.total, each.dtype),
         most < 0 ? "N/A" : format_size(static_cast<double>(most))});
  }
  Widths widths{};
  std::size_t total = 0;
  for (std::size_t i = 0; i < kColumns; ++i) {
    for (const Row& row : rows) {
      widths[i] = std::max(widths[i], characters(row[i]));
    }
    total += widths[i];
  }
  const std::string title = format("Memory Usage for loading `{}`", model);
  std::size_t inside = total + kColumns - 1;
  if (characters(title) > inside) {
    widths.back() += characters(title) - inside;
    inside = characters(title);
  }
  std::string table = rule(widths, "┌", "─", "┐");
  table += "│" + centered(title, inside) + "│\n";
  table += rule(widths, "├", "┬", "┤") + cells(rows.front(), widths) +
      rule(widths, "├", "┼", "┤");
  for (std::size_t i = 1; i < rows.size(); ++i) table += cells(rows[i], widths);
  return table + rule(widths, "└", "┴", "┘");
}

namespace {

MemoryRow row_of_case(
    const ModelTree& model,
    std::uint64_t largest_layer,
    TrainingPlan training,
    const MemoryCase& at) {
  training.uses_16_bits =
      at.precision != FloatType::fp32 || training.weights_dtype != "float32";
  training.batch_size = at.micro_batch;
  training.recomputes_activations = at.recomputes;
  training.accumulation_steps = at.accumulation_steps;
  training.uses_fp8 = at.uses_fp8;
  training.tensor = at.tensor;
  training.context = at.context;
  training.pipeline = at.pipeline;
  training.num_shards = 1;
  const bool is_alone =
      at.split == MemorySplit::replicated && at.num_ranks == 1;
  const bool shards_weights = at.split == MemorySplit::full_shard ||
      at.split == MemorySplit::hybrid_shard;
  const bool optimizer_is_on_disk = training.optimizer_is_on_disk &&
      (is_alone || at.split != MemorySplit::replicated);
  const bool weights_are_on_disk =
      training.weights_are_on_disk && (is_alone || shards_weights);
  training.optimizer_is_on_disk = false;
  training.weights_are_on_disk = false;
  const TrainingMemory whole = training_memory(model, largest_layer, training);
  training.optimizer_is_on_disk = optimizer_is_on_disk;
  training.weights_are_on_disk = weights_are_on_disk;
  training.num_shards = at.num_shards;
  const TrainingMemory shard = training_memory(model, largest_layer, training);
  MemoryRow row{
      .weights = whole.weights,
      .gradients = shard.gradients,
      .optimizer_state = shard.optimizer + shard.masters,
      .activations = whole.activations.value_or(0)};
  switch (at.split) {
    case MemorySplit::replicated:
      if (is_alone) {
        row.weights = shard.weights;
        row.units = shard.gathered;
      }
      row.buckets =
          at.num_ranks > at.tensor * at.pipeline ? whole.gradients : 0;
      break;
    case MemorySplit::zero_1:
      if (at.accumulation_steps > 1) row.gradients = whole.gradients;
      [[fallthrough]];
    case MemorySplit::zero_2:
      // Gradients being computed and gradients in flight: two units, where a
      // model with sharded parameters has three.
      row.units = shard.gathered / 3 * 2;
      break;
    case MemorySplit::full_shard:
    case MemorySplit::hybrid_shard:
      row.weights = shard.weights;
      row.units = shard.gathered;
      break;
  }
  row.units += shard.buffers;
  row.on_disk = shard.on_disk;
  return row;
}

}  // namespace

MemoryPlan plan_transformer(
    const ModelTree& model,
    std::uint64_t largest_layer,
    const TrainingPlan& training,
    MemoryPlan::Facts facts) {
  if (!model.transformer) {
    throw ConfigError(
        "[estimate-memory] --fits needs the shape of a transformer, which "
        "activations depend on, but there is no config.json with it; pass a "
        "directory that has one, or plan in the program (plan_memory())");
  }
  if (training.sequence_length < 1) {
    throw ConfigError(
        "[estimate-memory] --fits needs --sequence_length, "
        "the tokens per sample");
  }
  const auto shared = std::make_shared<const ModelTree>(model);
  facts.batch_size = training.batch_size;
  facts.notes = {
      "Activations: computed from the shape (Korthikanti et al., 2022)."};
  return {
      std::move(facts),
      [shared, largest_layer, training](const MemoryCase& at) {
        return row_of_case(*shared, largest_layer, training, at);
      }};
}

}  // namespace accelerate::detail
