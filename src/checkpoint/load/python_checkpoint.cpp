#include <utility>

#include <ATen/Functions.h>

#include "base/text/text.h"
#include "checkpoint/contents.h"
#include "checkpoint/load/python_state.h"
#include "checkpoint/load/source.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/torch/torch_distributed.h"
#include "format/torch/torch_file.h"
#include "format/weights/weights.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;
using PickleKind = Pickle::Kind;
using Value = Pickle::Value;

// Number of steps that a scheduler has made. ChainedScheduler keeps no count of
// its own: its schedules make all steps together.
std::int64_t steps_of(const PythonState& saved, const Value& scheduler) {
  const auto schedules = PythonState::find(scheduler, "_schedulers");
  if (!PythonState::find(scheduler, "last_epoch") && schedules &&
      schedules->size() > 0) {
    return steps_of(saved, schedules->item(0).as_dict());
  }
  return static_cast<std::int64_t>(
      saved.number(saved.at(scheduler, "last_epoch")));
}

// Translates a scheduler's state to that of this library's schedules.
StateDict read_scheduler(const PythonState& saved, const Value& dict) {
  const auto number = [&](std::string_view key) {
    return static_cast<std::int64_t>(saved.number(saved.at(dict, key)));
  };
  StateDict state;
  const std::int64_t step = steps_of(saved, dict);
  state.set("step", step);
  // LibTorch's own schedules only count steps.
  state.set("num_steps", step);
  state.set("metrics", std::vector<double>());
  const std::vector<double> last_lrs = PythonState::find(dict, "_last_lr")
      ? saved.numbers(saved.at(dict, "_last_lr"))
      : std::vector<double>();
  state.set("last_lrs", last_lrs);
  state.set(
      "base_lrs",
      PythonState::find(dict, "base_lrs")
          ? saved.numbers(saved.at(dict, "base_lrs"))
          : last_lrs);
  if (PythonState::find(dict, "num_bad_epochs")) {
    state.set("best", saved.number(saved.at(dict, "best")));
    state.set("num_bad_steps", number("num_bad_epochs"));
    state.set("cooldown_counter", number("cooldown_counter"));
  }
  for (const char* key : {"T_cur", "T_i"}) {
    if (const auto value = PythonState::find(dict, key)) {
      state.set(key, saved.number(*value));
    }
  }
  if (const auto schedules = PythonState::find(dict, "_schedulers")) {
    std::vector<StateDict> states;
    for (std::size_t i = 0; i < schedules->size(); ++i) {
      states.push_back(read_scheduler(saved, schedules->item(i).as_dict()));
    }
    state.set("parts", std::move(states));
  }
  return state;
}

StateDict read_scaler(const fs::path& file) {
  const PythonState saved(file);
  const Value root = saved.root().as_dict();
  StateDict state;
  for (const char* key : {"scale", "growth_factor", "backoff_factor"}) {
    if (const auto value = PythonState::find(root, key)) {
      state.set(key, saved.number(*value));
    }
  }
  for (const char* key : {"growth_interval", "_growth_tracker"}) {
    if (const auto value = PythonState::find(root, key)) {
      state.set(key, static_cast<std::int64_t>(saved.number(*value)));
    }
  }
  return state;
}

StateDict read_random_states(const PythonState& saved) {
  const Value root = saved.root().as_dict();
  StateDict random;
  const auto tensor_of = [&](const Value& value) {
    const auto found = saved.tensor(value);
    if (!found) saved.fail("a random state is not a tensor");
    return saved.load(*found);
  };
  if (const auto cpu = PythonState::find(root, "torch_manual_seed")) {
    random.set("cpu", tensor_of(*cpu));
  }
  if (const auto cuda = PythonState::find(root, "torch_cuda_manual_seed")) {
    for (std::size_t i = 0; i < cuda->size(); ++i) {
      random.set(format("cuda:{}", i), tensor_of(cuda->item(i)));
    }
  }
  return random;
}

// Returns nothing if the directory has no model with this number.
std::optional<StoredTensors> find_model(
    const fs::path& directory,
    std::size_t number) {
  const fs::path safe =
      directory / (numbered("model", number) + ".safetensors");
  if (fs::exists(safe)) return stored_in_safetensors(safe);
  const fs::path pickled =
      directory / (numbered("pytorch_model", number) + ".bin");
  if (fs::exists(pickled)) return stored_in_torch_file(pickled);
  // FSDP writes sharded state dicts here.
  const fs::path sharded = directory / format("pytorch_model_fsdp_{}", number);
  if (is_torch_distributed(sharded)) {
    return read_torch_distributed(sharded).tensors;
  }
  return std::nullopt;
}

// Adds a section for each model.
void read_models(CheckpointSource& source) {
  for (std::size_t i = 0;; ++i) {
    auto tensors = find_model(source.directory, i);
    if (!tensors) return;
    source.sections[numbered("model", i)] = *std::move(tensors);
  }
}

// Returns the optimizers' states, and adds a section for each.
std::vector<StateDict> read_optimizers(CheckpointSource& source) {
  std::vector<StateDict> states;
  for (std::size_t i = 0;; ++i) {
    const std::string name = numbered("optimizer", i);
    const fs::path file = source.directory / (name + ".bin");
    if (!fs::exists(file)) return states;
    states.push_back(read_python_optimizer(file, source.sections[name]));
  }
}

std::vector<StateDict> read_schedulers(const fs::path& directory) {
  std::vector<StateDict> states;
  for (std::size_t i = 0;; ++i) {
    const fs::path file = directory / (numbered("scheduler", i) + ".bin");
    if (!fs::exists(file)) return states;
    const PythonState saved(file);
    states.push_back(read_scheduler(saved, saved.root().as_dict()));
  }
}

std::vector<StateDict> read_objects(const fs::path& directory) {
  std::vector<StateDict> states;
  for (std::size_t i = 0;; ++i) {
    const fs::path file = directory / format("custom_checkpoint_{}.pkl", i);
    if (!fs::exists(file)) return states;
    const PythonState saved(file);
    states.push_back(saved.dict(saved.root().as_dict()));
  }
}

fs::path random_states_file(const fs::path& directory, int rank) {
  return directory / format("random_states_{}.pkl", rank);
}

int count_processes(const fs::path& directory) {
  int count = 1;
  while (fs::exists(random_states_file(directory, count))) ++count;
  return count;
}

// The contents of a rank's file of random states.
struct RankRecord {
  std::int64_t step = 0;
  std::optional<StateDict> state;
};

// A rank without a file takes only the step, from rank 0's file.
RankRecord read_rank_record(const fs::path& directory, int rank) {
  RankRecord record;
  const fs::path first = random_states_file(directory, 0);
  if (!fs::exists(first)) return record;
  const fs::path own = random_states_file(directory, rank);
  const bool has_own = fs::exists(own);
  const PythonState saved(has_own ? own : first);
  const auto step = PythonState::find(saved.root().as_dict(), "step");
  if (step) record.step = static_cast<std::int64_t>(saved.number(*step));
  if (has_own) {
    record.state = StateDict{
        {"random", read_random_states(saved)},
        {"loaders", std::vector<StateDict>()},
        {"strategies", std::vector<StateDict>()}};
  }
  return record;
}

}  // namespace

CheckpointSource open_python_checkpoint(const fs::path& directory, int rank) {
  CheckpointSource source;
  source.directory = directory;
  source.is_python = true;
  read_models(source);
  std::vector<StateDict> optimizers = read_optimizers(source);
  std::vector<StateDict> schedulers = read_schedulers(directory);
  std::vector<StateDict> objects = read_objects(directory);
  source.num_processes = count_processes(directory);
  RankRecord record = read_rank_record(directory, rank);
  source.rank_state = std::move(record.state);
  source.state = {
      {"optimizers", std::move(optimizers)},
      {"schedulers", std::move(schedulers)},
      {"objects", std::move(objects)},
      // Positions of Python's loaders are objects of Python classes.
      {"loaders", std::vector<StateDict>()},
      {"step",
       StateDict{{"micro_step", record.step}, {"serial", record.step}}}};
  const fs::path scaler = directory / "scaler.pt";
  if (fs::exists(scaler)) source.state.set("scaler", read_scaler(scaler));
  return source;
}

}  // namespace accelerate::detail
