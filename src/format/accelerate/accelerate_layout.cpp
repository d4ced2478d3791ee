#include "format/accelerate/accelerate_layout.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/text/text.h"
#include "format/accelerate/python_values.h"
#include "format/accelerate/saved_state.h"
#include "format/checkpoint/file_names.h"
#include "format/tensors/stored_tensors.h"
#include "format/tensors/tensor_writer.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;
using Json = SavedState::Json;

const SavedTensors& section_of(
    const Manifest& manifest,
    const std::string& name) {
  static const SavedTensors none;
  const auto found = manifest.sections.find(name);
  return found == manifest.sections.end() ? none : found->second;
}

// True if Accelerate's layout has the same file for a model.
bool is_shared_file(
    const std::string& name,
    const AccelerateLayoutOptions& options) {
  return name.ends_with(".bin") ||
      (options.safe_serialization && name.starts_with("model") &&
       name.find("-of-") == std::string::npos);
}

// The names of the native layout's own files, which no hook added.
std::set<std::string> native_files(const Manifest& manifest) {
  std::set<std::string> names;
  for (const auto& [section, tensors] : manifest.sections) {
    names.insert(section_file(section, false, 0, 1));
    for (const auto& [name, tensor] : tensors) {
      for (const SavedBox& box : tensor.boxes) names.insert(box.file);
    }
  }
  for (std::size_t i = 0; i <= manifest.sections.size() + 1; ++i) {
    names.insert(torch_file_of(numbered("model", i)));
  }
  for (const auto& [name, record] : manifest.files) {
    if (name.starts_with("rank-") && name.ends_with(".safetensors")) {
      names.insert(name);
    }
  }
  names.insert(section_file(kStateSection, false, 0, 1));
  std::erase_if(names, [&](const std::string& name) {
    return !manifest.files.contains(name);
  });
  return names;
}

// The number in "rank-00003.safetensors"; nothing for any other name.
std::optional<int> rank_in(const std::string& name) {
  constexpr std::string_view kBefore = "rank-", kAfter = ".safetensors";
  if (!name.starts_with(kBefore) || !name.ends_with(kAfter)) return {};
  const auto number = parse_int(std::string_view(name).substr(
      kBefore.size(), name.size() - kBefore.size() - kAfter.size()));
  if (!number) return {};
  return static_cast<int>(*number);
}

class Conversion {
 public:
  Conversion(
      FileSystem& disk,
      const fs::path& source,
      const Manifest& manifest,
      const fs::path& output,
      const AccelerateLayoutOptions& options)
      : disk_(disk),
        source_(source),
        manifest_(manifest),
        output_(output),
        options_(options),
        state_(source / section_file(kStateSection, false, 0, 1)) {}

  std::vector<std::string> run() {
    write_optimizers();
    write_schedulers();
    write_scaler();
    write_objects();
    write_ranks();
    for (const auto& [section, tensors] : manifest_.sections) {
      if (section.starts_with("model")) write_model(section, tensors);
    }
    copy_torch_files();
    name_other_states();
    name_other_files();
    return std::move(left_out_);
  }

 private:
  void write(const std::string& name, const TorchValue& value) {
    write_torch_file(disk_, output_ / name, value);
  }

  // The states under `key`; none if it is missing.
  [[nodiscard]] const Json& list(const char* key) const {
    static const Json none = Json::array();
    const Json* const found = state_.find(key);
    return found == nullptr ? none : state_.states_in(*found);
  }

  void write_optimizers() {
    const Json& optimizers = list("optimizers");
    for (std::size_t i = 0; i < optimizers.size(); ++i) {
      const std::string name = numbered("optimizer", i);
      const StoredTensors tensors =
          stored_in_checkpoint(source_, section_of(manifest_, name));
      write(
          name + ".bin",
          python_optimizer(
              state_,
              optimizers[i],
              name,
              tensors,
              schedule_entries(static_cast<std::int64_t>(i)),
              left_out_));
    }
  }

  // The entries that the constructors of PyTorch's schedules add to their
  // optimizer's groups, where OneCycleLR reads them at every step. Loading an
  // optimizer replaces its groups, so entries missing from a file would be
  // lost.
  [[nodiscard]] ScheduleEntries schedule_entries(std::int64_t optimizer) const {
    ScheduleEntries entries;
    for (const Json& scheduler : list("schedulers")) {
      if (scheduler.value("optimizer", std::int64_t{-1}) != optimizer) continue;
      if (scheduler.contains("base_lrs")) {
        entries.emplace("initial_lr", reals(scheduler["base_lrs"]));
      }
      add_one_cycle_entries(scheduler, entries);
    }
    return entries;
  }

  void add_one_cycle_entries(const Json& scheduler, ScheduleEntries& entries)
      const {
    if (scheduler.contains("max_lrs")) {
      for (const auto& [theirs, ours] :
           {std::pair("initial_lr", "base_lrs"),
            {"max_lr", "max_lrs"},
            {"min_lr", "min_lrs"},
            {"max_momentum", "max_momentum"},
            {"base_momentum", "base_momentum"}}) {
        if (!scheduler.contains(ours)) continue;
        entries.insert_or_assign(theirs, reals(scheduler[ours]));
      }
    }
    if (!scheduler.contains("parts")) return;
    for (const Json& part : state_.states_in(scheduler["parts"])) {
      add_one_cycle_entries(part, entries);
    }
  }

  // A number, or a list of numbers.
  [[nodiscard]] std::vector<double> reals(const Json& saved) const {
    const TorchValue value = state_.value(saved, "scheduler");
    std::vector<double> numbers;
    const auto add = [&](const TorchValue& one) {
      const auto* const number = std::get_if<double>(&one.value);
      if (number == nullptr) state_.fail();
      numbers.push_back(*number);
    };
    if (const auto* items = std::get_if<TorchValue::List>(&value.value)) {
      for (const TorchValue& item : *items) add(item);
    } else {
      add(value);
    }
    return numbers;
  }

  void write_schedulers() {
    const Json& schedulers = list("schedulers");
    for (std::size_t i = 0; i < schedulers.size(); ++i) {
      const std::string name = numbered("scheduler", i);
      write(name + ".bin", scheduler(schedulers[i], name));
    }
  }

  // The entries that PyTorch's schedules change while they run. Loading a
  // schedule only updates the object, so options of its class may be missing.
  TorchValue scheduler(const Json& saved, const std::string& name) {
    const bool is_own = saved.contains("step");
    const char* const count = is_own ? "step" : "num_steps";
    if (!saved.contains(count)) state_.fail();
    const auto step = saved[count].get<std::int64_t>();
    TorchValue::Dict dict;
    dict.add({std::string("last_epoch")}, {step});
    dict.add({std::string("_step_count")}, {step + 1});
    std::size_t num_groups = 0;
    const auto add = [&](const char* theirs, const char* ours) {
      if (!saved.contains(ours)) return;
      TorchValue value = state_.value(saved[ours], name);
      if (const auto* list = std::get_if<TorchValue::List>(&value.value)) {
        num_groups = list->size();
      }
      dict.add({std::string(theirs)}, std::move(value));
    };
    add("_last_lr", "last_lrs");
    add("base_lrs", "base_lrs");
    // LambdaLR, MultiplicativeLR and CyclicLR require an entry for functions,
    // which are not saved if they are None.
    dict.add(
        {std::string("lr_lambdas")},
        {TorchValue::List(num_groups, TorchValue{})});
    dict.add({std::string("_scale_fn_custom")}, {});
    add("best", "best");
    add("num_bad_epochs", "num_bad_steps");
    add("cooldown_counter", "cooldown_counter");
    for (const char* key : {"T_0", "T_mult", "eta_min", "T_cur", "T_i"}) {
      add(key, key);
    }
    if (saved.contains("parts")) {
      TorchValue::List parts;
      for (const Json& part : state_.states_in(saved["parts"])) {
        parts.push_back(scheduler(part, name));
      }
      dict.add({std::string("_schedulers")}, {std::move(parts)});
    }
    if (!is_own && saved.contains("metrics") &&
        !saved["metrics"].value("doubles", Json::array()).empty()) {
      left_out_.push_back(format(
          "what LibTorch's ReduceLROnPlateauScheduler (\"{}\") remembers of "
          "its metrics, which it does not reveal; "
          "accelerate::optim::ReduceLROnPlateau does",
          name));
    }
    return {std::move(dict)};
  }

  void write_scaler() {
    const Json* const scaler = state_.find("scaler");
    if (scaler == nullptr) return;
    write("scaler.pt", state_.dict(state_.state_in(*scaler), "scaler"));
  }

  void write_objects() {
    const Json& objects = list("objects");
    for (std::size_t i = 0; i < objects.size(); ++i) {
      const std::string name = format("custom_checkpoint_{}", i);
      write(name + ".pkl", state_.dict(objects[i], name));
    }
  }

  void write_ranks() {
    const Json* const clock = state_.find("step");
    const std::int64_t step = clock == nullptr
        ? 0
        : state_.state_in(*clock).value("micro_step", std::int64_t{0});
    bool has_loaders = false;
    std::set<std::string> strategies;
    for (const auto& [name, record] : manifest_.files) {
      const auto rank = rank_in(name);
      if (!rank) continue;
      const SavedState state(source_ / name);
      write(
          format("random_states_{}.pkl", *rank),
          python_random_states(state, step));
      look_for_strategies(state, strategies);
      has_loaders = has_loaders || has_any_state(state, "loaders");
    }
    if (has_loaders) {
      left_out_.emplace_back(
          "positions of loaders, which Accelerate does not save; continue at "
          "the beginning of a pass, or with skip_first_batches");
    }
    for (const std::string& name : strategies) {
      left_out_.push_back(
          format("the state of \"{}\" from step to step", name));
    }
  }

  static bool has_any_state(const SavedState& state, const char* key) {
    const Json* const saved = state.find(key);
    if (saved == nullptr) return false;
    const Json& states = state.states_in(*saved);
    return std::ranges::any_of(
        states, [](const Json& each) { return !each.empty(); });
  }

  static void look_for_strategies(
      const SavedState& state,
      std::set<std::string>& names) {
    const Json* const saved = state.find("strategies");
    if (saved == nullptr) return;
    for (const Json& model : state.states_in(*saved)) {
      for (const auto& [name, value] : model.items()) names.insert(name);
    }
  }

  void write_model(const std::string& section, const SavedTensors& saved) {
    const std::string native = section_file(section, false, 0, 1);
    const bool is_there = source_ == output_ &&
        manifest_.files.contains(native) && options_.safe_serialization;
    if (is_there) return;
    const StoredTensors tensors = stored_in_checkpoint(source_, saved);
    if (options_.safe_serialization) {
      FileToWrite file{output_ / native, {}, {{"format", "pt"}}};
      for (const auto& [name, tensor] : tensors) {
        file.tensors.emplace(name, to_write(tensor));
      }
      static_cast<void>(write_tensor_files(disk_, {file}));
      return;
    }
    TorchValue::Dict dict;
    std::int64_t storage = 0;
    std::map<std::string, std::int64_t> storages;
    for (const auto& [name, tensor] : tensors) {
      storages.emplace(name, ++storage);
      dict.add({name}, torch_tensor(tensor, storage));
    }
    const auto aliases = manifest_.aliases.find(section);
    if (aliases != manifest_.aliases.end()) {
      for (const auto& [alias, name] : aliases->second) {
        const auto found = tensors.find(name);
        if (found == tensors.end()) continue;
        dict.add({alias}, torch_tensor(found->second, storages.at(name)));
      }
    }
    write(torch_file_of(section), {std::move(dict)});
  }

  // Models saved with safe_serialization = false.
  void copy_torch_files() {
    if (source_ == output_) return;
    for (std::size_t i = 0;; ++i) {
      const std::string name = torch_file_of(numbered("model", i));
      if (!manifest_.files.contains(name)) {
        if (manifest_.sections.contains(numbered("model", i))) continue;
        return;
      }
      const InputFile from(source_ / name);
      const auto to = disk_.create(output_ / name);
      to->write_at(0, from.bytes());
      to->finish();
    }
  }

  void name_other_states() {
    static const std::set<std::string> known{
        "optimizers", "schedulers", "objects", "loaders", "step", "scaler"};
    for (const auto& [key, value] : state_.entries().items()) {
      if (!known.contains(key)) {
        left_out_.push_back(format("the state \"{}\"", key));
      }
    }
    for (const auto& [section, tensors] : manifest_.sections) {
      if (section.starts_with("strategies"))
        left_out_.push_back(format("the state \"{}\"", section));
    }
  }

  void name_other_files() {
    if (source_ == output_) return;
    const std::set<std::string> native = native_files(manifest_);
    for (const auto& [name, record] : manifest_.files) {
      if (!native.contains(name)) {
        left_out_.push_back(format("the file {} of a hook", name));
      }
    }
  }

  FileSystem& disk_;
  const fs::path& source_;
  const Manifest& manifest_;
  const fs::path& output_;
  const AccelerateLayoutOptions& options_;
  SavedState state_;
  std::vector<std::string> left_out_;
};

}  // namespace

std::vector<std::string> write_accelerate_layout(
    FileSystem& disk,
    const fs::path& source,
    const Manifest& manifest,
    const fs::path& output,
    const AccelerateLayoutOptions& options) {
  return Conversion(disk, source, manifest, output, options).run();
}

void remove_native_files(
    FileSystem& disk,
    const fs::path& directory,
    const Manifest& manifest,
    const AccelerateLayoutOptions& options) {
  for (const std::string& name : native_files(manifest)) {
    if (!is_shared_file(name, options)) disk.remove_file(directory / name);
  }
}

}  // namespace accelerate::detail
