#include "format/torch/torch_weights.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/limits.h"
#include "base/text/text.h"
#include "format/torch/torch_file.h"

namespace accelerate::detail {

namespace {

using PickleKind = Pickle::Kind;
using Value = Pickle::Value;

bool is_leaf(const Value& value) {
  switch (value.kind()) {
    case PickleKind::call:
    case PickleKind::persistent:
      return false;
    case PickleKind::list:
    case PickleKind::tuple:
    case PickleKind::dict:
    case PickleKind::set:
      return value.size() == 0;
    default:
      return true;
  }
}

std::string_view class_of(const Value& object) {
  const Value callee = object.item(0);
  return callee.kind() == PickleKind::global ? callee.text() : "";
}

bool is_numpy_array(const Value& object) {
  const std::string_view name = class_of(object);
  return name.starts_with("numpy.") && name.ends_with("\n_reconstruct");
}

// The attributes of a Python module that hold its state_dict().
bool holds_state(const Value& key) {
  return key.kind() == PickleKind::text &&
      (key.text() == "_parameters" || key.text() == "_buffers" ||
       key.text() == "_modules");
}

bool is_python_module(const Value& state) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < state.size(); ++i)
    count += holds_state(state.key(i)) ? 1 : 0;
  return count == 3;
}

bool is_script_module(const Value& object) {
  return class_of(object).starts_with("__torch__");
}

bool is_empty_container(const Value& value) {
  if (value.is_call_of("collections OrderedDict"))
    return value.size() < 3 || is_empty_container(value.item(2));
  const bool is_container = value.kind() == PickleKind::dict ||
      value.kind() == PickleKind::list || value.kind() == PickleKind::tuple;
  return is_container && value.size() == 0;
}

// Tensors that only Python can name get the number of their key.
std::string name_of_key(const Value& key, std::size_t number) {
  switch (key.kind()) {
    case PickleKind::text:
    case PickleKind::bytes:
      return std::string(key.text());
    case PickleKind::integer:
      return std::to_string(key.integer());
    case PickleKind::boolean:
      return key.integer() != 0 ? "True" : "False";
    default:
      return format("#{}", number);
  }
}

class TorchTensors {
 public:
  TorchTensors(const std::filesystem::path& where, const OnArray& on_array)
      : file_(where),
        input_(std::make_shared<InputFile>(where)),
        on_array_(on_array),
        listing_left_(kListingPerByte * file_.num_bytes() + kListingSlack),
        tensor_bytes_left_(file_.most_tensor_bytes()) {}

  StoredTensors read() {
    visit(file_.root(), "");
    return std::move(tensors_);
  }

  // Throws if the file holds anything.
  void require_nothing_else() const {
    if (is_empty_container(without_type(file_.root()))) return;
    std::string why;
    if (file_.has_entry("constants/0")) {
      why =
          ": it is a frozen TorchScript module, whose tensors are constants "
          "without names; save it before torch.jit.freeze()";
    } else if (!arrays_.empty()) {
      why = format(
          ", only numpy arrays, which are not read ({}); save "
          "torch.from_numpy() of them",
          join(arrays_, ", "));
    }
    throw CheckpointError(
        format("[torch] {} holds no tensors{}", input_->path().string(), why));
  }

 private:
  // A pickle can refer to a dictionary again for two bytes, and all its tensors
  // then have further names. The memory for names and places of tensors is
  // bounded by the file's size; real files take a few hundred bytes per tensor.
  static constexpr std::uint64_t kListingPerByte = 64;
  static constexpr std::uint64_t kListingSlack = std::uint64_t{16} << 20U;
  static constexpr std::uint64_t kEntryBytes = 64;
  static constexpr std::uint64_t kTensorEntryBytes = 512;

  [[noreturn]] void fail(const std::string& name, const std::string& what) {
    TensorPlace{input_->path().string(), name}.fail(what);
  }

  void charge_listing(const std::string& name, std::uint64_t num_bytes) {
    if (num_bytes > listing_left_) {
      fail(
          name,
          format(
              "the list of tensors would exceed {} times the file's size: the "
              "file repeats dictionaries",
              kListingPerByte));
    }
    listing_left_ -= num_bytes;
  }

  void visit(const Value& typed, const std::string& name) {
    const Value value = without_type(typed);
    if (is_leaf(value)) return;
    charge_listing(name, kEntryBytes + name.size());
    if (const auto tensor = file_.tensor(value, name))
      return add(*tensor, name);
    switch (value.kind()) {
      case PickleKind::dict:
        return visit_entries(value, name);
      case PickleKind::call:
        return visit_object(value, name);
      case PickleKind::persistent:
        fail(
            name,
            "it is a storage, which has no shape; save a tensor in its place");
      default:
        return visit_items(value, name);
    }
  }

  void visit_items(const Value& items, const std::string& name) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!is_leaf(items.item(i)))
        visit(items.item(i), name_inside(name, std::to_string(i)));
    }
  }

  void visit_entries(const Value& dict, const std::string& name) {
    for (std::size_t i = 0; i < dict.size(); ++i) {
      if (!is_leaf(dict.value(i)))
        visit(dict.value(i), name_inside(name, name_of_key(dict.key(i), i)));
    }
  }

  void visit_object(const Value& object, const std::string& name) {
    if (is_numpy_array(object)) {
      arrays_.push_back(format("\"{}\"", printable(name)));
      if (on_array_) on_array_(name);
    }
    visit_items(object.item(1), name);
    for (std::size_t i = 2; i < object.size(); ++i) {
      const Value state = object.item(i);
      if (state.kind() != PickleKind::dict) {
        visit(state, name);
      } else if (is_python_module(state)) {
        visit_python_module(state, name);
      } else if (is_script_module(object)) {
        visit_script_module(state, name);
      } else {
        visit_entries(state, name);
      }
    }
  }

  void visit_python_module(const Value& state, const std::string& name) {
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (holds_state(state.key(i))) visit(state.value(i), name);
    }
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (!holds_state(state.key(i))) visit_attribute(state, i, name);
    }
  }

  void visit_script_module(const Value& state, const std::string& name) {
    const auto is_state = [&](std::size_t i) {
      return without_type(state.value(i)).kind() == PickleKind::call;
    };
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (is_state(i))
        visit(state.value(i), name_inside(name, name_of_key(state.key(i), i)));
    }
    for (std::size_t i = 0; i < state.size(); ++i) {
      if (!is_state(i)) visit_attribute(state, i, name);
    }
  }

  // Modules also hold their tensors in attributes of other names, as RNNs do in
  // a list.
  void
  visit_attribute(const Value& state, std::size_t i, const std::string& name) {
    if (is_leaf(state.value(i))) return;
    const bool was_attribute = std::exchange(is_attribute_, true);
    visit(state.value(i), name_inside(name, name_of_key(state.key(i), i)));
    is_attribute_ = was_attribute;
  }

  std::string name_inside(const std::string& name, std::string_view step) {
    if (name.size() + step.size() >= kMostNameBytes) {
      fail(
          format("{}.{}", name, step.substr(0, kMostNameBytes)),
          format(
              "a name must have at most {} bytes, but has more",
              kMostNameBytes));
    }
    return name.empty() ? std::string(step) : format("{}.{}", name, step);
  }

  void add(const TorchTensor& tensor, const std::string& name) {
    charge_listing(name, kTensorEntryBytes + name.size());
    const auto [storage, is_new] = storages_.emplace(
        std::make_tuple(
            tensor.storage,
            tensor.dtype,
            tensor.offset,
            tensor.sizes,
            tensor.strides,
            tensor.hidden_bits),
        static_cast<std::int64_t>(storages_.size()) + 1);
    if (is_new) {
      charge_bytes(tensor, name);
    } else if (is_attribute_) {
      return;
    }
    const auto [place, is_first] = tensors_.emplace(name, StoredTensor());
    if (!is_first) {
      if (place->second.storage == storage->second) return;
      fail(name, "the file has two tensors that would get this name");
    }
    place->second = {
        tensor.dtype,
        tensor.sizes,
        {box_of(tensor)},
        storage->second,
        tensors_.size()};
  }

  void charge_bytes(const TorchTensor& tensor, const std::string& name) {
    const std::uint64_t num_bytes =
        safetensors::bytes_of(tensor.dtype, tensor.sizes).value_or(0);
    if (num_bytes > tensor_bytes_left_) {
      fail(
          name,
          format(
              "with it, the tensors repeat their storages to more than {} "
              "bytes, too many for a file of {} bytes",
              file_.most_tensor_bytes(),
              file_.num_bytes()));
    }
    tensor_bytes_left_ -= num_bytes;
  }

  StoredBox box_of(const TorchTensor& tensor) const {
    const auto width =
        static_cast<std::uint64_t>(safetensors::bits_of(tensor.dtype)) / 8;
    StoredBox box{
        input_,
        file_.place_of(tensor) + tensor.offset * width,
        {safetensors::Shape(tensor.sizes.size(), 0), tensor.sizes}};
    // Bytes with strides are never used where they lie.
    if (!tensor.is_contiguous() || tensor.hidden_bits.any()) {
      box.strides = tensor.strides;
      box.hidden_bits = tensor.hidden_bits;
    }
    return box;
  }

  TorchFile file_;
  std::shared_ptr<const InputFile> input_;
  const OnArray& on_array_;
  std::uint64_t listing_left_;
  std::uint64_t tensor_bytes_left_;
  StoredTensors tensors_;
  /// Names of numpy arrays, quoted.
  std::vector<std::string> arrays_;
  /// Whether the values visited are attributes of a module, which may repeat
  /// its tensors.
  bool is_attribute_ = false;
  std::map<
      std::tuple<
          std::string,
          safetensors::Dtype,
          std::uint64_t,
          safetensors::Shape,
          safetensors::Shape,
          HiddenBits>,
      std::int64_t>
      storages_;
};

}  // namespace

StoredTensors stored_in_torch_file(
    const std::filesystem::path& file,
    const OnArray& on_array) {
  return TorchTensors(file, on_array).read();
}

StoredTensors weights_in_torch_file(
    const std::filesystem::path& file,
    const OnArray& on_array) {
  TorchTensors reader(file, on_array);
  StoredTensors tensors = reader.read();
  if (tensors.empty()) reader.require_nothing_else();
  return tensors;
}

}  // namespace accelerate::detail
