#include "checkpoint/load/python_state.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_tree.h"
#include "format/weights/weights.h"

namespace accelerate::detail {

namespace {

using PickleKind = Pickle::Kind;
using Value = Pickle::Value;

// Returns the optimizer's state for parameter `number`, and adds its tensors,
// which are in `all`, to `tensors`.
StateDict read_parameter(
    const PythonState& saved,
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
    } else if (value.kind() != PickleKind::none) {
      values.set(key, saved.number(value));
    }
  }
  return values;
}

// Returns each parameter's position in its group, by number.
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
    const PythonState& saved,
    const std::string& key,
    const Value& value) {
  // Names kept by an optimizer that was made from named_parameters().
  if (key == "param_names") return;
  if (key == "maximize" && value.kind() == PickleKind::boolean) {
    if (value.integer() != 0) {
      saved.fail("the optimizer maximizes, which LibTorch's optimizers cannot");
    }
  } else if (value.kind() == PickleKind::boolean) {
    options.set(key, value.integer() != 0);
  } else if (
      value.kind() == PickleKind::integer || value.kind() == PickleKind::real ||
      saved.tensor(value)) {
    options.set(key, saved.number(value));
  } else if (
      value.kind() == PickleKind::tuple || value.kind() == PickleKind::list) {
    options.set(key, saved.numbers(value));
  }
}

StateDict read_parameter_group(const PythonState& saved, const Value& group) {
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

}  // namespace

StateDict read_python_optimizer(
    const std::filesystem::path& file,
    StoredTensors& tensors) {
  const PythonState saved(file);
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

}  // namespace accelerate::detail
