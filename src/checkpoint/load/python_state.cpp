#include "checkpoint/load/python_state.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "checkpoint/tensors/tensor_bytes.h"
#include "format/weights/weights.h"

namespace accelerate::detail {

namespace {

using PickleKind = Pickle::Kind;
using Value = Pickle::Value;

at::Tensor tensor_from(const TorchTensor& tensor) {
  const auto dtype = torch_dtype(tensor.dtype);
  if (!dtype) {
    throw CheckpointError(format(
        "[checkpoint] the file has a tensor of dtype {}, which LibTorch lacks",
        safetensors::name_of(tensor.dtype)));
  }
  const at::Tensor made = at::empty(
      torch_shape(tensor.dtype, tensor.sizes),
      at::TensorOptions().dtype(*dtype));
  const auto bytes = tensor.contiguous();
  std::ranges::copy(bytes, bytes_of(made).begin());
  return made;
}

bool is_dict(const Value& value) {
  return value.kind() == PickleKind::dict ||
      (value.is_call_of("collections OrderedDict"));
}

}  // namespace

PythonState::PythonState(std::filesystem::path where)
    : where_(std::move(where)),
      file_(where_),
      bytes_left_(file_.most_tensor_bytes()) {}

at::Tensor PythonState::load(const TorchTensor& tensor) const {
  const std::uint64_t num_bytes =
      safetensors::bytes_of(tensor.dtype, tensor.sizes).value_or(0);
  if (num_bytes > bytes_left_) {
    fail(format(
        "its tensors repeat their storages to more than {} bytes, too many for "
        "a file of {} bytes",
        file_.most_tensor_bytes(),
        file_.num_bytes()));
  }
  bytes_left_ -= num_bytes;
  return tensor_from(tensor);
}

void PythonState::fail(std::string_view what) const {
  throw CheckpointError(format("[checkpoint] {}: {}", where_.string(), what));
}

std::optional<Value> PythonState::find(
    const Value& dict,
    std::string_view key) {
  for (std::size_t i = 0; i < dict.size(); ++i) {
    if (dict.key(i).kind() == PickleKind::text && dict.key(i).text() == key) {
      return dict.value(i);
    }
  }
  return std::nullopt;
}

Value PythonState::at(const Value& dict, std::string_view key) const {
  const auto found = find(dict, key);
  if (!found) fail(format("\"{}\" is missing", key));
  return *found;
}

double PythonState::number(const Value& value) const {
  if (const auto scalar = file_.tensor(value)) {
    return load(*scalar).item<double>();
  }
  if (value.kind() == PickleKind::boolean) return value.integer() != 0 ? 1 : 0;
  if (value.kind() != PickleKind::integer && value.kind() != PickleKind::real) {
    fail("a value must be a number, but is not");
  }
  return value.real();
}

std::vector<double> PythonState::numbers(const Value& value) const {
  std::vector<double> list;
  for (std::size_t i = 0; i < value.size(); ++i) {
    list.push_back(number(value.item(i)));
  }
  return list;
}

StateDict PythonState::dict(const Value& value) const {
  StateDict state;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const Value key = value.key(i);
    const std::string name = key.kind() == PickleKind::text
        ? std::string(key.text())
        : std::to_string(key.integer());
    add(state, name, value.value(i));
  }
  return state;
}

void PythonState::add(
    StateDict& state,
    const std::string& name,
    const Value& value) const {
  if (const auto found = file_.tensor(value)) {
    state.set(name, load(*found));
  } else if (is_dict(value)) {
    const bool is_empty = value.kind() == PickleKind::call && value.size() < 3;
    state.set(name, is_empty ? StateDict() : dict(value.as_dict()));
  } else if (value.kind() == PickleKind::boolean) {
    state.set(name, value.integer() != 0);
  } else if (value.kind() == PickleKind::integer) {
    state.set(name, value.integer());
  } else if (value.kind() == PickleKind::real) {
    state.set(name, value.real());
  } else if (value.kind() == PickleKind::text) {
    state.set(name, std::string(value.text()));
  } else if (
      value.kind() == PickleKind::list || value.kind() == PickleKind::tuple) {
    add_list(state, name, value);
  } else if (value.kind() != PickleKind::none) {
    fail(format(
        "\"{}\" has a type that only Python can load; register an object whose "
        "state has only numbers, strings, lists, tensors and dictionaries",
        name));
  }
}

void PythonState::add_list(
    StateDict& state,
    const std::string& name,
    const Value& list) const {
  bool are_integers = true, are_numbers = true;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const PickleKind kind = list.item(i).kind();
    are_integers = are_integers && kind == PickleKind::integer;
    are_numbers = are_numbers &&
        (kind == PickleKind::integer || kind == PickleKind::real);
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
        // A mixed list: each item becomes a separate state, under its index.
        StateDict one;
        add(one, std::to_string(i), list.item(i));
        states.push_back(std::move(one));
      }
    }
    state.set(name, std::move(states));
  }
}

}  // namespace accelerate::detail
