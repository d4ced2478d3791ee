#include "format/torch/torch_file.h"

#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/limits.h"
#include "base/text/text.h"
#include "format/torch/torch_legacy.h"
#include "format/torch/zip_reader.h"

namespace accelerate::detail {

namespace {

using safetensors::Dtype;
using safetensors::Shape;

// Names of typed storages, and of dtypes that have no storage class.
constexpr std::array<std::pair<std::string_view, Dtype>, 30> kDtypes{{
    {"torch FloatStorage", Dtype::F32},
    {"torch DoubleStorage", Dtype::F64},
    {"torch HalfStorage", Dtype::F16},
    {"torch BFloat16Storage", Dtype::BF16},
    {"torch LongStorage", Dtype::I64},
    {"torch IntStorage", Dtype::I32},
    {"torch ShortStorage", Dtype::I16},
    {"torch CharStorage", Dtype::I8},
    {"torch ByteStorage", Dtype::U8},
    {"torch BoolStorage", Dtype::BOOL},
    {"torch ComplexFloatStorage", Dtype::C64},
    {"torch float32", Dtype::F32},
    {"torch float64", Dtype::F64},
    {"torch float16", Dtype::F16},
    {"torch bfloat16", Dtype::BF16},
    {"torch int64", Dtype::I64},
    {"torch int32", Dtype::I32},
    {"torch int16", Dtype::I16},
    {"torch int8", Dtype::I8},
    {"torch uint8", Dtype::U8},
    {"torch bool", Dtype::BOOL},
    {"torch complex64", Dtype::C64},
    {"torch uint16", Dtype::U16},
    {"torch uint32", Dtype::U32},
    {"torch uint64", Dtype::U64},
    {"torch float8_e4m3fn", Dtype::F8_E4M3},
    {"torch float8_e5m2", Dtype::F8_E5M2},
    {"torch float8_e4m3fnuz", Dtype::F8_E4M3FNUZ},
    {"torch float8_e5m2fnuz", Dtype::F8_E5M2FNUZ},
    {"torch float8_e8m0fnu", Dtype::F8_E8M0},
}};

Shape shape_of(const Pickle::Value& value) {
  Shape shape;
  if (value.size() > kMostDimensions) {
    throw CheckpointError(format(
        "[torch] a tensor has {} sizes or strides; at most {} are read",
        value.size(),
        kMostDimensions));
  }
  for (std::size_t i = 0; i < value.size(); ++i) {
    const std::int64_t size = value.item(i).integer();
    if (size < 0) throw CheckpointError("[torch] a size or stride is negative");
    shape.push_back(static_cast<std::uint64_t>(size));
  }
  return shape;
}

std::size_t element_bytes(Dtype dtype) {
  return static_cast<std::size_t>(safetensors::bits_of(dtype)) / 8;
}

// One past the last element that a view with these sizes and strides reaches;
// an empty view reaches nothing, wherever it begins.
std::optional<std::uint64_t>
reach(std::uint64_t offset, const Shape& sizes, const Shape& strides) {
  std::uint64_t last = offset;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    const std::uint64_t room = std::numeric_limits<std::uint64_t>::max() - last;
    if (strides[i] != 0 && (sizes[i] - 1) > room / strides[i]) {
      return std::nullopt;
    }
    last += (sizes[i] - 1) * strides[i];
  }
  if (last == std::numeric_limits<std::uint64_t>::max()) return std::nullopt;
  return last + 1;
}

std::string find_directory(const ZipReader& zip, const std::string& path) {
  constexpr std::string_view kPickle = "/data.pkl";
  for (const auto& [name, entry] : zip.entries()) {
    if (name.ends_with(kPickle)) {
      return name.substr(0, name.size() - kPickle.size());
    }
  }
  throw CheckpointError(format(
      "[torch] {} is an archive, but not one of torch.save: it has no data.pkl",
      path));
}

}  // namespace

std::optional<Dtype> torch_dtype_of(const Pickle::Value& value) {
  if (value.kind() != Pickle::Kind::global) return std::nullopt;
  for (const auto& [known, dtype] : kDtypes) {
    if (is_global(value.text(), known)) return dtype;
  }
  return std::nullopt;
}

bool TorchTensor::is_contiguous() const {
  std::uint64_t expected = 1;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 0) return true;
    if (sizes[i] != 1 && strides[i] != expected) return false;
    expected *= sizes[i];
  }
  return true;
}

std::vector<std::byte> TorchTensor::contiguous() const {
  const std::size_t width = element_bytes(dtype);
  const std::uint64_t count = safetensors::bytes_of(dtype, sizes).value_or(0);
  std::vector<std::byte> out(count);
  if (count == 0) return out;
  if (is_contiguous()) {
    std::memcpy(out.data(), bytes.data() + offset * width, count);
    return out;
  }
  Shape index(sizes.size(), 0);
  for (std::uint64_t at = 0; at < count; at += width) {
    std::uint64_t from = offset;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      from += index[i] * strides[i];
    }
    std::memcpy(out.data() + at, bytes.data() + from * width, width);
    for (std::size_t i = sizes.size(); i-- > 0;) {
      if (++index[i] < sizes[i]) break;
      index[i] = 0;
    }
  }
  return out;
}

struct TorchFile::State {
  std::optional<MappedFile> file;
  std::span<const std::byte> bytes;
  std::string path;
  std::optional<ZipReader> zip;
  std::string directory;
  std::unique_ptr<Pickle> pickle;
  /// Storages of a file in the legacy format.
  std::map<std::string, std::span<const std::byte>> storages;

  // Memory limit for what is built from the file.
  [[nodiscard]] std::size_t most_bytes() const {
    constexpr std::size_t kSlack = std::size_t{1} << 20;
    return 2 * bytes.size() + kSlack;
  }

  State(std::span<const std::byte> all, std::string where)
      : bytes(all), path(std::move(where)) {
    if (is_legacy_torch(bytes)) {
      LegacyTorch legacy = read_legacy_torch(bytes, path);
      pickle = std::move(legacy.pickle);
      storages = std::move(legacy.storages);
      return;
    }
    zip.emplace(bytes, path);
    directory = find_directory(*zip, path);
    const auto byte_order = zip->entries().find(directory + "/byteorder");
    if (byte_order != zip->entries().end()) {
      const auto text = byte_order->second.bytes;
      constexpr std::string_view kLittle = "little";
      const bool is_little = text.size() == kLittle.size() &&
          std::memcmp(text.data(), kLittle.data(), text.size()) == 0;
      if (!is_little) {
        throw CheckpointError(format(
            "[torch] {} was written on a machine of another byte order", path));
      }
    }
    const std::string name = directory + "/data.pkl";
    zip->verify(name);
    pickle = std::make_unique<Pickle>(zip->at(name).bytes, path, most_bytes());
  }

  [[nodiscard]] std::span<const std::byte> storage(
      const std::string& key) const {
    if (zip) return zip->at(format("{}/data/{}", directory, key)).bytes;
    const auto found = storages.find(key);
    if (found == storages.end()) {
      throw CheckpointError(
          format("[torch] {} has no storage '{}'", path, printable(key)));
    }
    return found->second;
  }
};

TorchFile::TorchFile(const std::filesystem::path& path) {
  MappedFile file(path);
  const auto bytes = file.bytes();
  state_ = std::make_unique<State>(bytes, path.string());
  state_->file.emplace(std::move(file));
}

TorchFile::TorchFile(std::span<const std::byte> bytes, const std::string& name)
    : state_(std::make_unique<State>(bytes, name)) {}

TorchFile::~TorchFile() = default;

Pickle::Value TorchFile::root() const { return state_->pickle->root(); }

namespace {

// Returns why a tensor cannot be read from its storage; empty if it can.
std::string extent_complaint(
    const TorchTensor& tensor,
    std::uint64_t most_bytes) {
  const auto end = tensor.sizes.size() == tensor.strides.size()
      ? reach(tensor.offset, tensor.sizes, tensor.strides)
      : std::nullopt;
  const auto size = safetensors::bytes_of(tensor.dtype, tensor.sizes);
  if (!end || *end > tensor.bytes.size() / element_bytes(tensor.dtype) || !size)
    return format(
        "it reaches beyond its storage '{}'", printable(tensor.storage));
  if (*size > most_bytes) {
    return format(
        "it repeats its storage to {} bytes; at most {} are read of this file",
        *size,
        most_bytes);
  }
  return {};
}

}  // namespace

std::optional<TorchTensor> TorchFile::tensor(const Pickle::Value& value) const {
  if (value.is_call_of("torch._utils _rebuild_parameter")) {
    const Pickle::Value arguments = value.item(1);
    auto parameter = tensor(arguments.item(0));
    if (parameter) parameter->requires_grad = arguments.item(1).integer() != 0;
    return parameter;
  }
  const bool has_dtype = value.is_call_of("torch._utils _rebuild_tensor_v3");
  if (!has_dtype && !value.is_call_of("torch._utils _rebuild_tensor_v2")) {
    return std::nullopt;
  }
  const auto fail = [&](const std::string& what) {
    throw CheckpointError(
        format("[torch] a tensor of {}: {}", state_->path, what));
  };
  const Pickle::Value arguments = value.item(1);
  if (arguments.item(0).kind() != Pickle::Kind::persistent) {
    fail("its storage is not in the file");
  }
  // ("storage", its class, its key, its device, its number of elements)
  const Pickle::Value storage = arguments.item(0).item(0);
  if (storage.item(0).text() != "storage") fail("it has no storage");
  const Pickle::Value named = has_dtype ? arguments.item(6) : storage.item(1);
  const std::optional<Dtype> dtype = torch_dtype_of(named);
  if (!dtype) {
    fail(format(
        "its dtype is not one that safetensors has: {}",
        printable(named.text())));
  }
  TorchTensor found;
  found.dtype = *dtype;
  const std::string_view key = storage.item(2).text();
  if (key.size() > kMostNameBytes) {
    fail(format(
        "the key of its storage has {} bytes; at most {} are read",
        key.size(),
        kMostNameBytes));
  }
  found.storage = key;
  const std::int64_t offset = arguments.item(1).integer();
  if (offset < 0) fail("it begins before its storage");
  found.offset = static_cast<std::uint64_t>(offset);
  found.sizes = shape_of(arguments.item(2));
  found.strides = shape_of(arguments.item(3));
  found.requires_grad = arguments.item(4).integer() != 0;
  found.bytes = state_->storage(found.storage);
  if (const std::string complaint =
          extent_complaint(found, most_tensor_bytes());
      !complaint.empty()) {
    fail(complaint);
  }
  return found;
}

std::uint64_t TorchFile::most_tensor_bytes() const {
  constexpr std::uint64_t kRepeats = 8;
  constexpr std::uint64_t kSlack = std::uint64_t{8} << 20U;
  return kRepeats * num_bytes() + kSlack;
}

std::uint64_t TorchFile::num_bytes() const { return state_->bytes.size(); }

std::uint64_t TorchFile::place_of(const TorchTensor& tensor) const {
  return static_cast<std::uint64_t>(tensor.bytes.data() - state_->bytes.data());
}

}  // namespace accelerate::detail
