#include "parallel/other_words.h"

#include <string>
#include <string_view>
#include <vector>

#include <accelerate/error.h>

#include "base/text.h"
#include "engines/megatron_lm.h"
#include "engines/parallelism.h"
#include "parallel/shard_options.h"

namespace accelerate::detail {

namespace {

// Takes a degree from other words, unless both say one and differ.
class Translation {
 public:
  explicit Translation(const ParallelOptions& options) : options_(options) {}

  void take(
      Axis axis,
      std::optional<int> ParallelOptions::*degree,
      std::string_view name,
      std::optional<int> value) {
    if (!value) return;
    std::optional<int>& own = options_.*degree;
    if (own && *own != *value) {
      complaints_.push_back(concat(
          "[parallel] ",
          name_of(axis),
          " is ",
          *own,
          ", but ",
          name,
          " is ",
          *value,
          "; leave one of them out"));
    }
    own = value;
  }

  void refuse(std::string complaint) {
    complaints_.push_back(std::move(complaint));
  }

  [[nodiscard]] ParallelOptions finish() const {
    if (!complaints_.empty()) throw ConfigError(join(complaints_, "\n"));
    return options_;
  }

 private:
  ParallelOptions options_;
  std::vector<std::string> complaints_;
};

std::string absent(std::string_view what, std::string_view name) {
  return concat(
      "[parallel] ",
      what,
      " was asked for, which this version does not have; set ",
      name,
      " to 1");
}

void translate_config(
    Translation& translation,
    const ParallelismConfig& given,
    const Settings& settings) {
  const ParallelismConfig config = resolve_parallelism(given, settings);
  if (*config.sp_size > 1) {
    translation.refuse(
        absent("splitting sequences by exchanging attention heads", "sp_size"));
  }
  // A configuration that splits nothing says nothing of copies either.
  if (NamedMesh(config).size() == 1) return;
  translation.take(
      Axis::replicate,
      &ParallelOptions::replicate,
      "dp_replicate_size",
      config.dp_replicate_size);
  translation.take(
      Axis::shard,
      &ParallelOptions::shard,
      "dp_shard_size",
      config.dp_shard_size);
  translation.take(
      Axis::tensor, &ParallelOptions::tensor, "tp_size", config.tp_size);
  translation.take(
      Axis::context, &ParallelOptions::context, "cp_size", config.cp_size);
}

void translate_megatron(
    Translation& translation,
    const MegatronLMOptions& given,
    const Settings& settings) {
  const MegatronLMOptions found = resolve_megatron_lm(given, settings);
  translation.take(
      Axis::tensor, &ParallelOptions::tensor, "tp_degree", found.tp_degree);
  translation.take(
      Axis::pipeline, &ParallelOptions::pipeline, "pp_degree", found.pp_degree);
  translation.take(
      Axis::context,
      &ParallelOptions::context,
      "context_parallel_size",
      found.context_parallel_size);
  if (*found.expert_model_parallel_size > 1) {
    translation.refuse(
        absent("sharing experts out", "expert_model_parallel_size"));
  }
  if (*found.expert_tensor_parallel_size > 1) {
    translation.refuse(
        absent("splitting experts", "expert_tensor_parallel_size"));
  }
}

}  // namespace

ParallelOptions in_own_words(
    const ParallelOptions& options,
    const Settings& settings) {
  Translation translation(options);
  // Degrees of the launcher alone are read where the others are.
  const bool splits_sequences =
      settings.integer("parallelism_config_sp_size").value_or(1) > 1;
  if (options.parallelism_config || splits_sequences) {
    translate_config(
        translation,
        options.parallelism_config.value_or(ParallelismConfig()),
        settings);
  }
  if (asks_for_megatron(options, settings)) {
    translate_megatron(
        translation,
        options.megatron_lm.value_or(MegatronLMOptions()),
        settings);
  }
  return translation.finish();
}

}  // namespace accelerate::detail
