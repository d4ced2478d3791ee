// Converts weights from one format to another and back, without LibTorch.
#include <memory>

#include "format/weights/weights.h"

#include <cstring>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace weights_test {

namespace fs = std::filesystem;
using safetensors::Dtype;
using testing::expect_error;
using testing::TemporaryDirectory;

// Bytes that identify their position.
TensorToWrite made(
    const std::shared_ptr<std::vector<std::byte>>& bytes,
    Dtype dtype,
    const safetensors::Shape& shape,
    int seed) {
  bytes->resize(*safetensors::bytes_of(dtype, shape));
  for (std::size_t i = 0; i < bytes->size(); ++i) {
    (*bytes)[i] = static_cast<std::byte>((i * 7 + seed) % 251);
  }
  TensorToWrite tensor{dtype, shape, {}};
  tensor.bytes.num_bytes = bytes->size();
  tensor.bytes.data = bytes->data();
  return tensor;
}

std::vector<std::byte> contents(const StoredTensor& tensor) {
  const TensorToWrite source = to_write(tensor);
  std::vector<std::byte> bytes(source.bytes.num_bytes);
  if (!bytes.empty()) source.bytes.copy(0, bytes);
  return bytes;
}

class Weights : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::pair<const char*, Dtype> kinds[] = {
        {"a.bool", Dtype::BOOL},
        {"a.u8", Dtype::U8},
        {"a.i16", Dtype::I16},
        {"a.u16", Dtype::U16},
        {"a.u32", Dtype::U32},
        {"a.u64", Dtype::U64},
        {"b.f16", Dtype::F16},
        {"b.bf16", Dtype::BF16},
        {"b.f32", Dtype::F32},
        {"b.f64", Dtype::F64},
        {"b.c64", Dtype::C64},
        {"b.e4m3", Dtype::F8_E4M3},
        {"b.e5m2", Dtype::F8_E5M2},
        {"b.e8m0", Dtype::F8_E8M0},
        {"b.fnuz", Dtype::F8_E4M3FNUZ}};
    int seed = 0;
    for (const auto& [name, dtype] : kinds) {
      for (const safetensors::Shape& shape :
           {safetensors::Shape{}, {0, 3}, {5}, {2, 3, 4}}) {
        bytes_.push_back(std::make_shared<std::vector<std::byte>>());
        tensors_.push_back(
            {name + std::to_string(tensors_.size()),
             made(bytes_.back(), dtype, shape, ++seed),
             0});
      }
    }
  }
  void expect_same(const StoredTensors& found) const {
    ASSERT_EQ(found.size(), tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const StoredTensor& tensor = found.at(tensors_[i].name);
      EXPECT_EQ(tensor.dtype, tensors_[i].tensor.dtype) << tensors_[i].name;
      EXPECT_EQ(tensor.shape, tensors_[i].tensor.shape) << tensors_[i].name;
      EXPECT_EQ(contents(tensor), *bytes_[i]) << tensors_[i].name;
    }
  }

  TemporaryDirectory directory_;
  std::vector<std::shared_ptr<std::vector<std::byte>>> bytes_;
  std::vector<NamedTensor> tensors_;
  std::shared_ptr<FileSystem> disk_ = make_file_system();
};

TEST_F(Weights, GoThroughEveryFormat) {
  write_model(*disk_, directory_ / "safe", tensors_);
  expect_same(open_weights(directory_ / "safe"));
  write_weights_file(
      *disk_, directory_ / "x.bin", open_weights(directory_ / "safe"));
  expect_same(open_weights(directory_ / "x.bin"));
  write_weights_file(
      *disk_, directory_ / "y.safetensors", open_weights(directory_ / "x.bin"));
  EXPECT_EQ(
      read_file(directory_ / "y.safetensors"),
      read_file(directory_ / "safe/model.safetensors"));
}

TEST_F(Weights, AreSpreadOverFilesAndReplaceStaleOnes) {
  const fs::path out = directory_ / "out";
  for (const ModelFormat how : {ModelFormat::safetensors, ModelFormat::torch}) {
    write_model(*disk_, out, tensors_, {how, 100});
    std::size_t num_files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(out)) {
      ++num_files;
    }
    EXPECT_GT(num_files, 5u);
    expect_same(open_weights(out));
    // Each file numbers its own storages; a single file must hold them all.
    const fs::path merged = directory_ / "merged.safetensors";
    write_weights_file(*disk_, merged, open_weights(out));
    expect_same(open_weights(merged));
    write_model(*disk_, out, tensors_, {how, 1 << 20});
    expect_same(open_weights(out));
    num_files = 0;
    for ([[maybe_unused]] const auto& entry : fs::directory_iterator(out)) {
      ++num_files;
    }
    EXPECT_EQ(num_files, 1u);
    fs::remove_all(out);
  }
}

// Tries every pair of formats and numbers of files.
TEST_F(Weights, TheLastSaveIsOpenedWhateverWasThere) {
  std::vector<std::shared_ptr<std::vector<std::byte>>> bytes;
  const auto model = [&](int seed) {
    std::vector<NamedTensor> tensors;
    for (const char* name : {"a", "b", "c"}) {
      bytes.push_back(std::make_shared<std::vector<std::byte>>());
      tensors.push_back({name, made(bytes.back(), Dtype::U8, {100}, seed), 0});
    }
    return tensors;
  };
  const std::vector<NamedTensor> old = model(1), young = model(2);
  std::vector<WriteModelOptions> all;
  for (const ModelFormat how : {ModelFormat::safetensors, ModelFormat::torch}) {
    for (const std::uint64_t size : {100U, 1000U}) all.push_back({how, size});
  }
  for (std::size_t i = 0; i < all.size() * all.size(); ++i) {
    SCOPED_TRACE(i);
    const fs::path out = directory_ / std::to_string(i);
    write_model(*disk_, out, old, all[i / all.size()]);
    std::ofstream(out / "config.json") << "{}";
    write_model(*disk_, out, young, all[i % all.size()]);
    const StoredTensors found = open_weights(out);
    ASSERT_EQ(found.size(), 3U);
    EXPECT_EQ(contents(found.at("b")), *bytes.back());
    EXPECT_TRUE(fs::exists(out / "config.json"));
  }
}

TEST_F(Weights, OfTheSameModelAreKeptInTheOtherFormat) {
  write_model(*disk_, directory_ / "out", tensors_, {ModelFormat::torch});
  write_model(*disk_, directory_ / "out", tensors_, {.has_same_weights = true});
  EXPECT_TRUE(fs::exists(directory_ / "out/pytorch_model.bin"));
  expect_same(open_weights(directory_ / "out"));
}

TEST_F(Weights, TellHowManyFilesOfAnIndexAreOpen) {
  using Counts = std::vector<std::pair<std::size_t, std::size_t>>;
  Counts counts;
  const OnOpenedFile count = [&](std::size_t num_open, std::size_t num_files) {
    counts.emplace_back(num_open, num_files);
  };
  write_model(*disk_, directory_ / "one", tensors_);
  expect_same(open_weights(directory_ / "one", count));
  EXPECT_EQ(counts, Counts());
  std::vector<NamedTensor> tensors;
  std::vector<std::shared_ptr<std::vector<std::byte>>> bytes;
  for (const char* name : {"a", "b", "c"}) {
    bytes.push_back(std::make_shared<std::vector<std::byte>>());
    tensors.push_back({name, made(bytes.back(), Dtype::U8, {100}, 1), 0});
  }
  write_model(
      *disk_, directory_ / "three", tensors, {ModelFormat::safetensors, 100});
  EXPECT_EQ(open_weights(directory_ / "three", count).size(), 3u);
  EXPECT_EQ(counts, (Counts{{0, 3}, {1, 3}, {2, 3}, {3, 3}}));
}

TEST_F(Weights, SharedTensorsAreWrittenOnce) {
  std::vector<NamedTensor> tied{
      {"embed", tensors_[3].tensor, 1}, {"head", tensors_[3].tensor, 1}};
  EXPECT_EQ(
      write_model(*disk_, directory_ / "safe", tied),
      std::vector<std::string>{"head"});
  EXPECT_EQ(open_weights(directory_ / "safe").size(), 1u);
  EXPECT_TRUE(
      write_model(
          *disk_, directory_ / "torch", tied, {ModelFormat::torch, 1 << 20})
          .empty());
  const StoredTensors found = open_weights(directory_ / "torch");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.at("embed").storage, found.at("head").storage);
}

TEST_F(Weights, RefusesWhatItCannotRead) {
  fs::create_directory(directory_ / "empty");
  expect_error<CheckpointError>(
      [&] { static_cast<void>(open_weights(directory_ / "empty")); },
      "holds no model");
  expect_error<CheckpointError>(
      [&] { static_cast<void>(open_weights(directory_ / "nowhere")); },
      "does not exist");
  std::ofstream(directory_ / "bad.index.json")
      << R"({"weight_map": {"a": "../secret"}})";
  expect_error<CheckpointError>(
      [&] { static_cast<void>(open_weights(directory_ / "bad.index.json")); },
      "outside its directory");
  std::ofstream(directory_ / "torn.index.json") << "{\n\"weight_map\": {";
  expect_error<CheckpointError>(
      [&] { static_cast<void>(open_weights(directory_ / "torn.index.json")); },
      "is not an index of a model: line 2, column 16: syntax error");
  std::ofstream(directory_ / "text.bin") << "no archive";
  EXPECT_THROW(
      static_cast<void>(open_weights(directory_ / "text.bin")),
      CheckpointError);
}

TEST_F(Weights, ReadsShardedTensorsPieceByPiece) {
  // A tensor of 6 x 10 in a grid of four boxes, each in its own file.
  std::vector<std::uint16_t> full(60);
  std::iota(full.begin(), full.end(), std::uint16_t{0});
  SavedTensors saved;
  SavedTensor& tensor = saved["t"];
  tensor.dtype = Dtype::U16;
  tensor.shape = {6, 10};
  for (std::uint64_t i = 0; i < 2; ++i) {
    for (std::uint64_t j = 0; j < 2; ++j) {
      const safetensors::Box box{
          {i * 4, j * 3}, {i == 0 ? 4U : 2U, j == 0 ? 3U : 7U}};
      const std::string file = std::to_string(2 * i + j) + ".safetensors";
      std::vector<std::uint16_t> shard;
      for (std::uint64_t r = 0; r < box.size[0]; ++r) {
        for (std::uint64_t c = 0; c < box.size[1]; ++c) {
          shard.push_back(full[(box.begin[0] + r) * 10 + box.begin[1] + c]);
        }
      }
      safetensors::Writer writer(
          directory_ / file, {{"t", Dtype::U16, box.size}});
      writer.write(std::as_bytes(std::span(shard)));
      writer.finish();
      tensor.boxes.push_back({file, box});
    }
  }
  const StoredTensors stored = stored_in_checkpoint(directory_.path(), saved);
  const TensorToWrite source = to_write(stored.at("t"));
  for (std::uint64_t begin = 0; begin < 60; ++begin) {
    for (std::uint64_t end = begin + 1; end <= 60; ++end) {
      std::vector<std::uint16_t> found(end - begin);
      source.bytes.copy(begin * 2, std::as_writable_bytes(std::span(found)));
      ASSERT_TRUE(std::equal(
          found.begin(), found.end(), full.begin() + static_cast<long>(begin)))
          << begin << " to " << end;
    }
  }
}

}  // namespace weights_test
}  // namespace accelerate::detail
