#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text.h"
#include "checkpoint/contents.h"
#include "checkpoint/load/source.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "checkpoint/tensors/tensor_tree.h"
#include "format/checkpoint/checkpoint_directory.h"
#include "format/tensors/weights.h"
#include "format/torch/torch_distributed.h"
#include "format/torch/torch_file.h"

namespace accelerate::detail {

namespace {

namespace fs = std::filesystem;
using Kind = Pickle::Kind;
using Value = Pickle::Value;

at::Tensor tensor_from(const TorchTensor& tensor) {
  const auto dtype = torch_dtype(tensor.dtype);
  if (!dtype) {
    throw CheckpointError(format(
        "[checkpoint] the file has a tensor of dtype {}, which LibTorch does "
        "not have",
        safetensors::name_of(tensor.dtype)));
  }
  const at::Tensor made = at::empty(
      torch_shape(tensor.dtype, tensor.sizes),
      at::TensorOptions().dtype(*dtype));
  const auto bytes = tensor.contiguous();
  std::copy(bytes.begin(), bytes.end(), bytes_of(made).begin());
  return made;
}

// Reads one torch.save file as a state.
class TorchState {
 public:
  explicit TorchState(fs::path where)
      : where_(std::move(where)),
        file_(where_),
        bytes_left_(file_.most_tensor_bytes()) {}

  [[nodiscard]] Value root() const { return file_.root(); }
  [[nodiscard]] std::optional<TorchTensor> tensor(const Value& value) const {
    return file_.tensor(value);
  }

  // A copy of its elements. Throws if all copies take more than is read of a
  // file of this size.
  [[nodiscard]] at::Tensor load(const TorchTensor& tensor) const {
    const std::uint64_t num_bytes =
        safetensors::bytes_of(tensor.dtype, tensor.sizes).value_or(0);
    if (num_bytes > bytes_left_) {
      fail(format(
          "its tensors repeat their storages to more than {} bytes, which is "
          "not read of a file of {} bytes",
          file_.most_tensor_bytes(),
          file_.num_bytes()));
    }
    bytes_left_ -= num_bytes;
    return tensor_from(tensor);
  }

  [[noreturn]] void fail(std::string_view what) const {
    throw CheckpointError(format("[checkpoint] {}: {}", where_.string(), what));
  }

  // Returns nothing if the key is missing.
  [[nodiscard]] static std::optional<Value> find(
      const Value& dict,
      std::string_view key) {
    for (std::size_t i = 0; i < dict.size(); ++i) {
      if (dict.key(i).kind() == Kind::text && dict.key(i).text() == key) {
        return dict.value(i);
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] Value at(const Value& dict, std::string_view key) const {
    const auto found = find(dict, key);
    if (!found) fail(format("\"{}\" is missing", key));
    return *found;
  }

  // The value of a number, or of a tensor of one element.
  [[nodiscard]] double number(const Value& value) const {
    if (const auto scalar = file_.tensor(value)) {
      return load(*scalar).item<double>();
    }
    if (value.kind() == Kind::boolean) return value.integer() != 0 ? 1 : 0;
    if (value.kind() != Kind::integer && value.kind() != Kind::real) {
      fail("a value that should be a number is not one");
    }
    return value.real();
  }

  [[nodiscard]] std::vector<double> numbers(const Value& value) const {
    std::vector<double> list;
    for (std::size_t i = 0; i < value.size(); ++i) {
      list.push_back(number(value.item(i)));
    }
    return list;
  }

  // Converts a dictionary, leaving out entries that are None.
  [[nodiscard]] StateDict dict(const Value& value) const {
    StateDict state;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const Value key = value.key(i);
      const std::string name = key.kind() == Kind::text
          ? std::string(key.text())
          : std::to_string(key.integer());
      add(state, name, value.value(i));
    }
    return state;
  }

 private:
  [[nodiscard]] static bool is_dict(const Value& value) {
    return value.kind() == Kind::dict ||
        (value.is_call_of("collections OrderedDict"));
  }

  void add(StateDict& state, const std::string& name, const Value& value)
      const {
    if (const auto found = file_.tensor(value)) {
      state.set(name, load(*found));
    } else if (is_dict(value)) {
      const bool is_empty = value.kind() == Kind::call && value.size() < 3;
      state.set(name, is_empty ? StateDict() : dict(value.as_dict()));
    } else if (value.kind() == Kind::boolean) {
      state.set(name, value.integer() != 0);
    } else if (value.kind() == Kind::integer) {
      state.set(name, value.integer());
    } else if (value.kind() == Kind::real) {
      state.set(name, value.real());
    } else if (value.kind() == Kind::text) {
      state.set(name, std::string(value.text()));
    } else if (value.kind() == Kind::list || value.kind() == Kind::tuple) {
      add_list(state, name, value);
    } else if (value.kind() != Kind::none) {
      fail(format(
          "\"{}\" is of a type that only Python can load; register an object "
          "whose state has only numbers, strings, lists, tensors and "
          "dictionaries",
          name));
    }
  }

  void add_list(StateDict& state, const std::string& name, const Value& list)
      const {
    bool are_integers = true, are_numbers = true;
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Kind kind = list.item(i).kind();
      are_integers = are_integers && kind == Kind::integer;
      are_numbers =
          are_numbers && (kind == Kind::integer || kind == Kind::real);
    }
    if (are_integers) {
      std::vector<std::int64_t> values;
      for (std::size_t i = 0; i < list.size(); ++i) {
        values.push_back(list.item(i).integer());
      }
      state.set(name, std::move(values));
    } else if (are_numbers) {
      state.set(name, numbers(list));
    } else {
      std::vector<StateDict> states;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (is_dict(list.item(i))) {
          states.push_back(dict(list.item(i).as_dict()));
        } else {
          // A mixed list: each item is a state of its own, under its index.
          StateDict one;
          add(one, std::to_string(i), list.item(i));
          states.push_back(std::move(one));
        }
      }
      state.set(name, std::move(states));
    }
  }

  fs::path where_;
  TorchFile file_;
  mutable std::uint64_t bytes_left_;
};

// Returns what the optimizer keeps for parameter `number`, and adds its
// tensors, which are in `all`, to `tensors`.
StateDict read_parameter(
    const TorchState& saved,
    const Value& entries,
    const std::string& number,
    const StoredTensors& all,
    StoredTensors& tensors) {
  StateDict values;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::string key(entries.key(i).text());
    const Value value = entries.value(i);
    if (key == "step") {
      // Python keeps the step as a float tensor.
      values.set(
          key, static_cast<std::int64_t>(std::llround(saved.number(value))));
    } else if (saved.tensor(value)) {
      const std::string name = format("{}/{}", number, key);
      tensors.emplace(name, all.at(format("state.{}.{}", number, key)));
      values.set(key, StateDict{{kTensorKey, name}});
    } else if (value.kind() != Kind::none) {
      values.set(key, saved.number(value));
    }
  }
  return values;
}

// Returns the place of each parameter in its group, by number.
StateDict places_in_group(const Value& numbers) {
  StateDict places;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    places.set(
        std::to_string(numbers.item(i).integer()),
        static_cast<std::int64_t>(i));
  }
  return places;
}

void add_group_option(
    StateDict& options,
    const TorchState& saved,
    const std::string& key,
    const Value& value) {
  // Names that an optimizer made from named_parameters() keeps.
  if (key == "param_names") return;
  if (key == "maximize" && value.kind() == Kind::boolean) {
    if (value.integer() != 0) {
      saved.fail("the optimizer maximizes, which LibTorch's optimizers cannot");
    }
  } else if (value.kind() == Kind::boolean) {
    options.set(key, value.integer() != 0);
  } else if (
      value.kind() == Kind::integer || value.kind() == Kind::real ||
      saved.tensor(value)) {
    options.set(key, saved.number(value));
  } else if (value.kind() == Kind::tuple || value.kind() == Kind::list) {
    options.set(key, saved.numbers(value));
  }
}

StateDict read_parameter_group(const TorchState& saved, const Value& group) {
  StateDict options, places;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::string key(group.key(i).text());
    if (key == "params") {
      places = places_in_group(group.value(i));
    } else {
      add_group_option(options, saved, key, group.value(i));
    }
  }
  return {{"options", std::move(options)}, {"parameters", std::move(places)}};
}

// Returns an optimizer's state, in which parameters are numbered, and adds its
// tensors to `tensors`.
StateDict read_optimizer(const fs::path& file, StoredTensors& tensors) {
  const TorchState saved(file);
  const StoredTensors all = stored_in_torch_file(file);
  const Value root = saved.root().as_dict();
  StateDict parameters;
  const Value state = saved.at(root, "state");
  for (std::size_t i = 0; i < state.size(); ++i) {
    const std::string number = std::to_string(state.key(i).integer());
    parameters.set(
        number,
        read_parameter(saved, state.value(i).as_dict(), number, all, tensors));
  }
  std::vector<StateDict> groups;
  const Value saved_groups = saved.at(root, "param_groups");
  for (std::size_t i = 0; i < saved_groups.size(); ++i) {
    groups.push_back(
        read_parameter_group(saved, saved_groups.item(i).as_dict()));
  }
  return {
      {"algorithm", std::string("python")},
      {"groups", std::move(groups)},
      {"parameters", std::move(parameters)}};
}

// The number of steps that a scheduler has made. ChainedScheduler keeps none of
// its own: its schedules make all steps together.
std::int64_t steps_of(const TorchState& saved, const Value& scheduler) {
  const auto schedules = TorchState::find(scheduler, "_schedulers");
  if (!TorchState::find(scheduler, "last_epoch") && schedules &&
      schedules->size() > 0) {
    return steps_of(saved, schedules->item(0).as_dict());
  }
  return static_cast<std::int64_t>(
      saved.number(saved.at(scheduler, "last_epoch")));
}

// Translates a scheduler's state to that of this library's schedules.
StateDict read_scheduler(const TorchState& saved, const Value& dict) {
  const auto number = [&](std::string_view key) {
    return static_cast<std::int64_t>(saved.number(saved.at(dict, key)));
  };
  StateDict state;
  const std::int64_t step = steps_of(saved, dict);
  state.set("step", step);
  // LibTorch's own schedules only count steps.
  state.set("num_steps", step);
  state.set("metrics", std::vector<double>());
  const std::vector<double> last_lrs = TorchState::find(dict, "_last_lr")
      ? saved.numbers(saved.at(dict, "_last_lr"))
      : std::vector<double>();
  state.set("last_lrs", last_lrs);
  state.set(
      "base_lrs",
      TorchState::find(dict, "base_lrs")
          ? saved.numbers(saved.at(dict, "base_lrs"))
          : last_lrs);
  if (TorchState::find(dict, "num_bad_epochs")) {
    state.set("best", saved.number(saved.at(dict, "best")));
    state.set("num_bad_steps", number("num_bad_epochs"));
    state.set("cooldown_counter", number("cooldown_counter"));
  }
  for (const char* key : {"T_cur", "T_i"}) {
    if (const auto value = TorchState::find(dict, key)) {
      state.set(key, saved.number(*value));
    }
  }
  if (const auto schedules = TorchState::find(dict, "_schedulers")) {
    std::vector<StateDict> states;
    for (std::size_t i = 0; i < schedules->size(); ++i) {
      states.push_back(read_scheduler(saved, schedules->item(i).as_dict()));
    }
    state.set("parts", std::move(states));
  }
  return state;
}

StateDict read_scaler(const fs::path& file) {
  const TorchState saved(file);
  const Value root = saved.root().as_dict();
  StateDict state;
  for (const char* key : {"scale", "growth_factor", "backoff_factor"}) {
    if (const auto value = TorchState::find(root, key)) {
      state.set(key, saved.number(*value));
    }
  }
  for (const char* key : {"growth_interval", "_growth_tracker"}) {
    if (const auto value = TorchState::find(root, key)) {
      state.set(key, static_cast<std::int64_t>(saved.number(*value)));
    }
  }
  return state;
}

StateDict read_random_states(const TorchState& saved) {
  const Value root = saved.root().as_dict();
  StateDict random;
  const auto tensor_of = [&](const Value& value) {
    const auto found = saved.tensor(value);
    if (!found) saved.fail("a random state is not a tensor");
    return saved.load(*found);
  };
  if (const auto cpu = TorchState::find(root, "torch_manual_seed")) {
    random.set("cpu", tensor_of(*cpu));
  }
  if (const auto cuda = TorchState::find(root, "torch_cuda_manual_seed")) {
    for (std::size_t i = 0; i < cuda->size(); ++i) {
      random.set(format("cuda:{}", i), tensor_of(cuda->item(i)));
    }
  }
  return random;
}

// Returns nothing if the directory has no model of this number.
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
    states.push_back(read_optimizer(file, source.sections[name]));
  }
}

std::vector<StateDict> read_schedulers(const fs::path& directory) {
  std::vector<StateDict> states;
  for (std::size_t i = 0;; ++i) {
    const fs::path file = directory / (numbered("scheduler", i) + ".bin");
    if (!fs::exists(file)) return states;
    const TorchState saved(file);
    states.push_back(read_scheduler(saved, saved.root().as_dict()));
  }
}

std::vector<StateDict> read_objects(const fs::path& directory) {
  std::vector<StateDict> states;
  for (std::size_t i = 0;; ++i) {
    const fs::path file = directory / format("custom_checkpoint_{}.pkl", i);
    if (!fs::exists(file)) return states;
    const TorchState saved(file);
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

// What Python keeps in a rank's file of random states.
struct RankRecord {
  std::int64_t step = 0;
  std::optional<StateDict> state;
};

// A rank without a file takes the step, and nothing else, from that of rank 0.
RankRecord read_rank_record(const fs::path& directory, int rank) {
  RankRecord record;
  const fs::path first = random_states_file(directory, 0);
  if (!fs::exists(first)) return record;
  const fs::path own = random_states_file(directory, rank);
  const bool has_own = fs::exists(own);
  const TorchState saved(has_own ? own : first);
  const auto step = TorchState::find(saved.root().as_dict(), "step");
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
      // Positions of Python's loaders are objects of its own classes.
      {"loaders", std::vector<StateDict>()},
      {"step",
       StateDict{{"micro_step", record.step}, {"serial", record.step}}}};
  const fs::path scaler = directory / "scaler.pt";
  if (fs::exists(scaler)) source.state.set("scaler", read_scaler(scaler));
  return source;
}

}  // namespace accelerate::detail
