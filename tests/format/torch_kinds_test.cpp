// Files that Python's torch.save wrote (torch_files/record.py), with every kind
// of tensor, container and object in them.
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accelerate/error.h>

#include "base/files/file_system.h"
#include "base/files/files.h"
#include "base/text/text.h"
#include "format/weights/weights.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace torch_kinds_test {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_error;
using testing::TemporaryDirectory;

const fs::path kFiles = ACCELERATE_TORCH_FILES;

std::string hex(const std::vector<std::byte>& bytes) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : bytes) {
    text += kDigits[std::to_integer<unsigned>(byte) >> 4U];
    text += kDigits[std::to_integer<unsigned>(byte) & 15U];
  }
  return text;
}

// The bytes as a writer takes them, in pieces of one element.
std::vector<std::byte> written_bytes(const StoredTensor& tensor) {
  const TensorToWrite source = to_write(tensor);
  const auto width =
      static_cast<std::size_t>(safetensors::bits_of(tensor.dtype)) / 8;
  std::vector<std::byte> bytes(source.bytes.num_bytes);
  for (std::size_t at = 0; at < bytes.size(); at += width)
    source.bytes.copy(at, std::span(bytes).subspan(at, width));
  return bytes;
}

// The bytes as a loader takes them.
std::vector<std::byte> read_bytes(const StoredTensor& tensor) {
  std::vector<std::byte> bytes(
      *safetensors::bytes_of(tensor.dtype, tensor.shape));
  read_boxes(
      {{&tensor,
        {safetensors::Shape(tensor.shape.size(), 0), tensor.shape},
        bytes}});
  return bytes;
}

json described(const StoredTensors& tensors) {
  json found = json::object();
  for (const auto& [name, tensor] : tensors) {
    const std::string bytes = hex(read_bytes(tensor));
    EXPECT_EQ(hex(written_bytes(tensor)), bytes) << name;
    found[name] = {safetensors::name_of(tensor.dtype), tensor.shape, bytes};
  }
  return found;
}

json expected() { return json::parse(read_file(kFiles / "expected.json")); }

TEST(TorchKinds, AreReadAsPythonReadsThem) {
  const json files = expected();
  for (const auto& [file, tensors] : files.items()) {
    SCOPED_TRACE(file);
    EXPECT_EQ(described(open_weights(kFiles / file)), tensors);
  }
}

TEST(TorchKinds, StayTheSameWhenConverted) {
  const TemporaryDirectory directory;
  const auto disk = make_file_system();
  const json files = expected();
  for (const auto& [file, tensors] : files.items()) {
    SCOPED_TRACE(file);
    const fs::path torch = directory / "x.bin";
    write_weights_file(*disk, torch, open_weights(kFiles / file));
    EXPECT_EQ(described(open_weights(torch)), tensors);
    const fs::path safe = directory / "x.safetensors";
    write_weights_file(*disk, safe, open_weights(kFiles / file));
    EXPECT_EQ(described(open_weights(safe)), tensors);
  }
}

TEST(TorchKinds, KnowWhichTensorsAreTied) {
  const StoredTensors views = open_weights(kFiles / "views.pt");
  EXPECT_EQ(views.at("tied").storage, views.at("contiguous").storage);
  EXPECT_NE(views.at("conjugate").storage, views.at("unconjugated").storage);
  const StoredTensors module = open_weights(kFiles / "module.pt");
  EXPECT_EQ(
      module.at("head.weight").storage, module.at("layers.0.weight").storage);
}

TEST(TorchKinds, AreRefusedByName) {
  const auto refuse = [](const char* file, const std::string& phrase) {
    SCOPED_TRACE(file);
    expect_error<CheckpointError>(
        [&] { static_cast<void>(open_weights(kFiles / file)); }, phrase);
  };
  refuse("sparse.pt", "sparse.pt: it was made by _rebuild_sparse_tensor");
  refuse("sparse.pt", "\"graph\" of ");
  refuse("quantized.pt", "\"q\" of ");
  refuse("meta.pt", "\"m\" of ");
  refuse(
      "complex128.pt",
      "complex128.pt: its dtype is one that safetensors lacks: "
      "torch\\nComplexDoubleStorage");
  refuse("complex128.pt", "\"z\" of ");
  refuse("storage.pt", "storage.pt: it is a storage, which has no shape");
  refuse("storage.pt", "\"s\" of ");
  refuse("same_name.pt", "\"a.b\" of ");
  refuse("same_name.pt", "two tensors that would get this name");
  refuse("nothing.pt", "nothing.pt holds no tensors");
  refuse("array.pt", "only numpy arrays, which are not read (\"arr\")");
  refuse("frozen.pt", "a frozen TorchScript module");
}

TEST(TorchKinds, NameNumpyArraysThatAreNotRead) {
  std::vector<std::string> names;
  const OnArray add = [&](const std::string& name) { names.push_back(name); };
  EXPECT_EQ(open_weights(kFiles / "array_beside.pt", {}, add).size(), 1U);
  EXPECT_EQ(names, std::vector<std::string>{"arr"});
}

}  // namespace torch_kinds_test
}  // namespace accelerate::detail
