#include "format/torch/torch_writer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/torch/zip_writer.h"

namespace accelerate::detail {

namespace {

using safetensors::Dtype;

constexpr std::uint64_t kStageBytes = 16U << 20U;

// Storages for which torch has a class; the others are bytes with a dtype.
constexpr std::pair<Dtype, std::string_view> kStorageClasses[] = {
    {Dtype::BOOL, "BoolStorage"},
    {Dtype::U8, "ByteStorage"},
    {Dtype::I8, "CharStorage"},
    {Dtype::I16, "ShortStorage"},
    {Dtype::I32, "IntStorage"},
    {Dtype::I64, "LongStorage"},
    {Dtype::F16, "HalfStorage"},
    {Dtype::BF16, "BFloat16Storage"},
    {Dtype::F32, "FloatStorage"},
    {Dtype::F64, "DoubleStorage"},
    {Dtype::C64, "ComplexFloatStorage"}};

constexpr std::pair<Dtype, std::string_view> kOtherDtypes[] = {
    {Dtype::U16, "uint16"},
    {Dtype::U32, "uint32"},
    {Dtype::U64, "uint64"},
    {Dtype::F8_E4M3, "float8_e4m3fn"},
    {Dtype::F8_E5M2, "float8_e5m2"},
    {Dtype::F8_E4M3FNUZ, "float8_e4m3fnuz"},
    {Dtype::F8_E5M2FNUZ, "float8_e5m2fnuz"},
    {Dtype::F8_E8M0, "float8_e8m0fnu"}};

// Empty if the table does not have the dtype.
std::string_view name_in(
    std::span<const std::pair<Dtype, std::string_view>> table,
    Dtype dtype) {
  for (const auto& [known, name] : table)
    if (known == dtype) return name;
  return {};
}

std::string_view dtype_name(Dtype dtype) {
  const std::string_view name = name_in(kOtherDtypes, dtype);
  if (name.empty()) {
    throw ConfigError(format(
        "[torch] files of torch.save have no dtype {}",
        safetensors::name_of(dtype)));
  }
  return name;
}

// Writes protocol 2, which every version of Python can read.
class Pickler {
 public:
  explicit Pickler(std::vector<const TorchValue::Tensor*>& storages)
      : storages_(storages) {}

  std::string document(const TorchValue& root) {
    out_ = "\x80\x02";
    value(root);
    return out_ + ".";
  }

 private:
  void op(char code) { out_ += code; }
  void global(std::string_view module, std::string_view name) {
    out_ += format("c{}\n{}\n", module, name);
  }
  void u32(std::size_t value) {
    for (int i = 0; i < 4; ++i) {
      out_ += static_cast<char>(value >> (8 * i) & 0xffU);
    }
  }
  void text(std::string_view value) {
    if (value.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw ConfigError("[torch] a string is longer than 4 GB");
    }
    op('X');
    u32(value.size());
    out_ += value;
  }
  void integer(std::int64_t value) {
    if (value >= std::numeric_limits<std::int32_t>::min() &&
        value <= std::numeric_limits<std::int32_t>::max()) {
      op('J');
      u32(static_cast<std::uint32_t>(value));
      return;
    }
    out_ += "\x8a\x08";
    for (int i = 0; i < 8; ++i) {
      out_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i));
    }
  }
  void real(double value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    op('G');
    for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i));
  }
  void boolean(bool value) { op(value ? '\x88' : '\x89'); }

  void pairs(const TorchValue::Dict& dict) {
    if (dict.keys.empty()) return;
    op('(');
    for (std::size_t i = 0; i < dict.keys.size(); ++i) {
      value(dict.keys[i]);
      value(dict.values[i]);
    }
    op('u');
  }
  void shape(const safetensors::Shape& sizes) {
    op('(');
    for (const std::uint64_t size : sizes) {
      integer(static_cast<std::int64_t>(size));
    }
    op('t');
  }

  void tensor(const TorchValue::Tensor& tensor) {
    const TensorToWrite& contents = tensor.contents;
    const std::string_view typed = name_in(kStorageClasses, contents.dtype);
    const bool is_typed = !typed.empty();
    global(
        "torch._utils", is_typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    op('(');
    op('(');
    text("storage");
    if (is_typed) {
      global("torch", typed);
    } else {
      global("torch.storage", "UntypedStorage");
    }
    text(std::to_string(storage_of(tensor)));
    text("cpu");
    const auto width = static_cast<std::uint64_t>(
        is_typed ? safetensors::bits_of(contents.dtype) / 8 : 1);
    integer(static_cast<std::int64_t>(contents.bytes.num_bytes / width));
    op('t');
    op('Q');
    integer(0);
    shape(contents.shape);
    safetensors::Shape strides(contents.shape.size(), 1);
    for (std::size_t i = strides.size(); i-- > 1;) {
      strides[i - 1] =
          strides[i] * std::max<std::uint64_t>(contents.shape[i], 1);
    }
    shape(strides);
    boolean(false);
    global("collections", "OrderedDict");
    out_ += ")R";
    if (!is_typed) global("torch", dtype_name(contents.dtype));
    op('t');
    op('R');
  }

  std::size_t storage_of(const TorchValue::Tensor& tensor) {
    if (tensor.storage != 0) {
      const auto [place, is_new] =
          known_.emplace(tensor.storage, storages_.size());
      if (!is_new) return place->second;
    }
    storages_.push_back(&tensor);
    return storages_.size() - 1;
  }

  void value(const TorchValue& given) {
    std::visit(
        [this](const auto& inner) {
          using T = std::decay_t<decltype(inner)>;
          if constexpr (std::is_same_v<T, std::monostate>) {
            op('N');
          } else if constexpr (std::is_same_v<T, bool>) {
            boolean(inner);
          } else if constexpr (std::is_same_v<T, std::int64_t>) {
            integer(inner);
          } else if constexpr (std::is_same_v<T, double>) {
            real(inner);
          } else if constexpr (std::is_same_v<T, std::string>) {
            text(inner);
          } else if constexpr (std::is_same_v<T, TorchValue::List>) {
            op(']');
            if (inner.empty()) return;
            op('(');
            for (const TorchValue& each : inner) value(each);
            op('e');
          } else if constexpr (std::is_same_v<T, TorchValue::Tuple>) {
            op('(');
            for (const TorchValue& each : inner.items) value(each);
            op('t');
          } else if constexpr (std::is_same_v<T, TorchValue::Dict>) {
            op('}');
            pairs(inner);
          } else {
            tensor(inner);
          }
        },
        given.value);
  }

  std::string out_;
  std::vector<const TorchValue::Tensor*>& storages_;
  std::map<std::int64_t, std::size_t> known_;
};

}  // namespace

void write_torch_file(
    FileSystem& disk,
    const std::filesystem::path& path,
    const TorchValue& root) {
  std::vector<const TorchValue::Tensor*> storages;
  const std::string pickle = Pickler(storages).document(root);
  ZipWriter zip(disk.create(path));
  // The name that torch gives to an unnamed archive.
  const std::string directory = "archive";
  zip.add(directory + "/data.pkl", pickle);
  zip.add(directory + "/.format_version", "1");
  zip.add(directory + "/.storage_alignment", "64");
  zip.add(directory + "/byteorder", "little");
  std::vector<std::byte> stage;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    const TensorBytes& bytes = storages[i]->contents.bytes;
    zip.begin(format("{}/data/{}", directory, i), bytes.num_bytes);
    if (bytes.data != nullptr) {
      zip.write({bytes.data, bytes.num_bytes});
    } else {
      for (std::uint64_t at = 0; at < bytes.num_bytes; at += kStageBytes) {
        stage.resize(std::min(kStageBytes, bytes.num_bytes - at));
        bytes.copy(at, stage);
        zip.write(stage);
      }
    }
    zip.end();
  }
  zip.add(directory + "/version", "3\n");
  zip.finish();
}

}  // namespace accelerate::detail
