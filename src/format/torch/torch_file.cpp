#include "format/torch/torch_file.h"

#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/limits.h"
#include "base/text/text.h"
#include "format/torch/zip_reader.h"

namespace accelerate::detail {

namespace {

// A file in torch.save's format before zip, which it still writes with
// _use_new_zipfile_serialization=False: several pickles, then the storages.
struct LegacyTorch {
  std::unique_ptr<Pickle> pickle;
  /// Storages by key.
  std::map<std::string, std::span<const std::byte>> storages;
};

// The pickle of the number 0x1950a86a20f9469cfc6c.
constexpr std::string_view kMagic =
    "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";

bool is_legacy_torch(std::span<const std::byte> bytes) {
  return bytes.size() >= kMagic.size() &&
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
}

[[noreturn]] void fail_legacy(const std::string& name, std::string_view what) {
  throw CheckpointError(format("[torch] {}: {}", name, what));
}

std::string storage_key_in(
    const Pickle::Value& value,
    const std::string& name) {
  if (value.text().size() > kMostNameBytes) {
    fail_legacy(
        name,
        format(
            "the key of a storage has {} bytes, but at most {} are read",
            value.text().size(),
            kMostNameBytes));
  }
  return std::string(value.text());
}

// Bytes per element of each storage, whose size counts elements of its class.
std::map<std::string, std::size_t> element_widths(
    const Pickle& pickle,
    const std::string& name) {
  std::map<std::string, std::size_t> widths;
  for (const Pickle::Value& reference : pickle.all(Pickle::Kind::persistent)) {
    const Pickle::Value storage = reference.item(0);
    if (storage.kind() != Pickle::Kind::tuple || storage.size() < 5 ||
        storage.item(0).text() != "storage") {
      continue;
    }
    const auto dtype = torch_dtype_of(storage.item(1));
    widths[storage_key_in(storage.item(2), name)] =
        dtype ? static_cast<std::size_t>(safetensors::bits_of(*dtype)) / 8 : 1;
  }
  return widths;
}

// Throws CheckpointError if it is incomplete, or of another byte order.
LegacyTorch read_legacy_torch(
    std::span<const std::byte> bytes,
    const std::string& name) {
  const auto fail = [&](std::string_view what) { fail_legacy(name, what); };
  const std::size_t most_bytes = (std::size_t{1} << 20) + 2 * bytes.size();
  std::size_t at = kMagic.size();
  const auto next = [&] {
    auto pickle = std::make_unique<Pickle>(bytes.subspan(at), name, most_bytes);
    at += pickle->size();
    return pickle;
  };
  if (next()->root().integer() != 1001) fail("it has an unknown protocol");
  const auto system = next();
  const Pickle::Value facts = system->root().as_dict();
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (facts.key(i).text() == "little_endian" &&
        facts.value(i).integer() == 0) {
      fail("it was written on a machine of another byte order");
    }
  }
  LegacyTorch found;
  found.pickle = next();
  const auto widths = element_widths(*found.pickle, name);
  const auto keys = next();
  for (std::size_t i = 0; i < keys->root().size(); ++i) {
    const std::string key = storage_key_in(keys->root().item(i), name);
    std::int64_t count = 0;
    if (bytes.size() - at < sizeof count) fail("it is torn");
    std::memcpy(&count, bytes.data() + at, sizeof count);
    at += sizeof count;
    const std::size_t width = widths.contains(key) ? widths.at(key) : 1;
    if (count < 0 ||
        static_cast<std::uint64_t>(count) > (bytes.size() - at) / width) {
      fail("it is torn");
    }
    const std::size_t size = static_cast<std::size_t>(count) * width;
    found.storages.emplace(key, bytes.subspan(at, size));
    at += size;
  }
  return found;
}

using safetensors::Dtype;
using safetensors::Shape;

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
    const std::string byte_order = directory + "/byteorder";
    if (zip->entries().contains(byte_order)) {
      const auto text = zip->at(byte_order).bytes;
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

  // The bytes of ("storage", its class, its key, its device, its number of
  // elements).
  [[nodiscard]] std::span<const std::byte> bytes_of(
      const Pickle::Value& storage,
      const TensorPlace& place) const {
    const std::string_view key = storage.item(2).text();
    if (key.size() > kMostNameBytes) {
      place.fail(format(
          "the key of its storage has {} bytes, but at most {} are read",
          key.size(),
          kMostNameBytes));
    }
    const auto found = entry(std::string(key));
    const auto dtype = torch_dtype_of(storage.item(1));
    const std::int64_t count = storage.item(4).integer();
    if (count < 0 ||
        static_cast<std::uint64_t>(count) >
            found.size() / (dtype ? element_bytes(*dtype) : 1)) {
      place.fail(format(
          "its storage '{}' has {} bytes, too few for its {} elements: the "
          "file is torn",
          printable(key),
          found.size(),
          count));
    }
    return found;
  }

  [[nodiscard]] std::span<const std::byte> entry(const std::string& key) const {
    if (zip) return zip->at(format("{}/data/{}", directory, key)).bytes;
    const auto found = storages.find(key);
    if (found == storages.end()) {
      throw CheckpointError(
          format("[torch] {} has no storage '{}'", path, printable(key)));
    }
    return found->second;
  }
};

bool is_torch_file(std::span<const std::byte> bytes) {
  constexpr std::string_view kZip = "PK\3\4";
  const bool is_zip = bytes.size() >= kZip.size() &&
      std::memcmp(bytes.data(), kZip.data(), kZip.size()) == 0;
  return is_zip || is_legacy_torch(bytes);
}

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
        "it repeats its storage to {} bytes, but at most {} "
        "are read from this file",
        *size,
        most_bytes);
  }
  return {};
}

}  // namespace

std::optional<TorchTensor> TorchFile::tensor(
    const Pickle::Value& value,
    std::string_view name) const {
  const TensorPlace place{state_->path, name};
  const std::optional<TensorCall> call = tensor_call_in(value, place);
  if (!call) return std::nullopt;
  const Pickle::Value& arguments = call->arguments;
  if (arguments.item(0).kind() != Pickle::Kind::persistent) {
    place.fail("its storage is not in the file");
  }
  const Pickle::Value storage = arguments.item(0).item(0);
  if (storage.item(0).text() != "storage") place.fail("it has no storage");
  const Pickle::Value named = call->dtype.value_or(storage.item(1));
  const std::optional<Dtype> dtype = torch_dtype_of(named);
  if (!dtype) {
    place.fail(format(
        "its dtype is one that safetensors lacks: {}",
        printable(named.text())));
  }
  TorchTensor found;
  found.dtype = *dtype;
  found.hidden_bits = call->hidden_bits;
  if (found.hidden_bits.is_negative && !has_negatives(*dtype)) {
    place.fail(format(
        "it has a pending negation, which {} does not support",
        safetensors::name_of(*dtype)));
  }
  found.bytes = state_->bytes_of(storage, place);
  found.storage = storage.item(2).text();
  const std::int64_t offset = arguments.item(1).integer();
  if (offset < 0) place.fail("it begins before its storage");
  found.offset = static_cast<std::uint64_t>(offset);
  found.sizes = torch_shape_in(arguments.item(2), place);
  found.strides = torch_shape_in(arguments.item(3), place);
  found.requires_grad = call->requires_grad;
  if (const std::string complaint =
          extent_complaint(found, most_tensor_bytes());
      !complaint.empty()) {
    place.fail(complaint);
  }
  return found;
}

bool TorchFile::has_entry(const std::string& entry) const {
  return state_->zip &&
      state_->zip->entries().contains(
          format("{}/{}", state_->directory, entry));
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
