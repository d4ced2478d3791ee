#include "format/torch/torch_file.h"

#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/archive.h"
#include "format/weights/weights.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::detail {
namespace torch_file_test {

using safetensors::Dtype;
using testing::archive;
using testing::ArchiveFile;
using ::testing::ElementsAre;
using testing::expect_error;
using testing::little;
using testing::TemporaryDirectory;

std::string text_op(const std::string& text) {
  return format("X{}{}", little(text.size(), 4), text);
}

std::string number_op(std::uint64_t value) {
  return format("J{}", little(value, 4));
}

std::string tuple_op(const std::vector<std::uint64_t>& values) {
  std::string ops = "(";
  for (const std::uint64_t value : values) ops += number_op(value);
  return format("{}t", ops);
}

std::string storage_op(const std::string& type, const std::string& key) {
  return format(
      "({}ctorch\n{}\n{}{}{}tQ",
      text_op("storage"),
      type,
      text_op(key),
      text_op("cpu"),
      number_op(6));
}

std::string tensor_op(
    const std::string& storage,
    std::uint64_t offset,
    const std::vector<std::uint64_t>& sizes,
    const std::vector<std::uint64_t>& strides) {
  return format(
      "ctorch._utils\n_rebuild_tensor_v2\n({}{}{}{}"
      "\x89"
      "ccollections\nOrderedDict\n)RtR",
      storage,
      number_op(offset),
      tuple_op(sizes),
      tuple_op(strides));
}

std::string pickle_of(const std::string& ops) {
  return format("\x80\x02{}.", ops);
}

class TorchFiles : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path put(
      const std::string& pickle,
      const std::string& storage,
      const std::string& byte_order = "little") const {
    const std::vector<ArchiveFile> files{
        {"m/data.pkl", pickle},
        {"m/byteorder", byte_order},
        {"m/data/0", storage}};
    std::ofstream(directory_ / "m.pt", std::ios::binary) << archive(files);
    return directory_ / "m.pt";
  }

 private:
  TemporaryDirectory directory_;
};

std::vector<std::int16_t> numbers_in(const TorchTensor& tensor) {
  const std::vector<std::byte> bytes = tensor.contiguous();
  std::vector<std::int16_t> numbers(bytes.size() / 2);
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

// The numbers 0 to 5.
std::string shorts() {
  std::string bytes;
  for (std::uint64_t i = 0; i < 6; ++i) bytes += little(i, 2);
  return bytes;
}

TEST_F(TorchFiles, GiveTensorsOfAnyView) {
  const std::string storage = storage_op("ShortStorage", "0");
  const TorchFile file(
      put(pickle_of(format(
              "]({}{}{}{}{}ctorch._utils\n_rebuild_parameter\n({}\x88}}tRK\x07"
              "e",
              tensor_op(storage, 0, {2, 3}, {3, 1}),
              tensor_op(storage, 1, {2, 2}, {1, 3}),
              tensor_op(storage, 5, {}, {}),
              tensor_op(storage, 6, {0, 4}, {4, 1}),
              tensor_op(storage, 2, {3}, {0}),
              tensor_op(storage, 0, {1}, {1}))),
          shorts()));
  const Pickle::Value root = file.root();
  const auto matrix = file.tensor(root.item(0));
  ASSERT_TRUE(matrix);
  EXPECT_EQ(matrix->dtype, Dtype::I16);
  EXPECT_THAT(matrix->sizes, ElementsAre(2U, 3U));
  EXPECT_EQ(matrix->storage, "0");
  EXPECT_TRUE(matrix->is_contiguous());
  EXPECT_THAT(numbers_in(*matrix), ElementsAre(0, 1, 2, 3, 4, 5));
  const auto transposed = file.tensor(root.item(1));
  EXPECT_FALSE(transposed->is_contiguous());
  EXPECT_THAT(numbers_in(*transposed), ElementsAre(1, 4, 2, 5));
  EXPECT_THAT(numbers_in(*file.tensor(root.item(2))), ElementsAre(5));
  EXPECT_THAT(numbers_in(*file.tensor(root.item(3))), ElementsAre());
  EXPECT_THAT(numbers_in(*file.tensor(root.item(4))), ElementsAre(2, 2, 2));
  EXPECT_TRUE(file.tensor(root.item(5))->requires_grad);
  EXPECT_FALSE(file.tensor(root.item(6)));
}

TEST_F(TorchFiles, RefuseTensorsThatReachOutside) {
  const std::string storage = storage_op("ShortStorage", "0");
  const auto refuse = [&](const std::string& tensor,
                          const std::string& phrase) {
    const TorchFile file(put(pickle_of(tensor), shorts()));
    expect_error<CheckpointError>(
        [&] { static_cast<void>(file.tensor(file.root())); }, phrase);
  };
  refuse(tensor_op(storage, 0, {7}, {1}), "reaches beyond its storage '0'");
  refuse(tensor_op(storage, 6, {1}, {1}), "reaches beyond");
  refuse(tensor_op(storage, 0, {2, 2}, {1}), "reaches beyond");
  refuse(
      tensor_op(storage, 0, {1 << 30, 1 << 30}, {1 << 30, 1 << 30}),
      "reaches beyond");
  refuse(tensor_op(storage, 0, {1 << 30}, {0}), "repeats its storage");
  refuse(
      tensor_op(
          storage,
          0,
          std::vector<std::uint64_t>(65, 1),
          std::vector<std::uint64_t>(65, 1)),
      "65 sizes or strides, but at most 64 are read");
  refuse(
      tensor_op(
          storage_op("ShortStorage", std::string(5000, '9')), 0, {1}, {1}),
      "has 5000 bytes, but at most 4096 are read");
  refuse(tensor_op(storage, 0, {0xffffffff}, {1}), "is negative");
  refuse(
      tensor_op(storage_op("ShortStorage", "1"), 0, {1}, {1}),
      "no entry 'm/data/1'");
  refuse(
      tensor_op(storage_op("QInt8Storage", "0"), 0, {1}, {1}),
      "one that safetensors lacks");
  refuse(tensor_op("N", 0, {1}, {1}), "its storage is not in the file");
}

// A dict of these tensors, with numbers as keys.
std::string dict_op(const std::vector<std::string>& tensors) {
  std::string ops = "}(";
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    ops += text_op(std::to_string(i)) + tensors[i];
  }
  return ops + "u";
}

std::vector<std::int16_t> numbers_in(const StoredTensor& tensor) {
  const TensorToWrite source = to_write(tensor);
  std::vector<std::int16_t> numbers(source.bytes.num_bytes / 2);
  // Copies in pieces, as a writer does.
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    source.bytes.copy(
        2 * i, std::as_writable_bytes(std::span(numbers).subspan(i, 1)));
  }
  return numbers;
}

TEST_F(TorchFiles, GiveViewsWithoutCopiesInMemory) {
  const std::string storage = storage_op("ShortStorage", "0");
  const auto tensors = stored_in_torch_file(
      put(pickle_of(dict_op(
              {tensor_op(storage, 1, {2, 2}, {1, 3}),
               tensor_op(storage, 2, {3}, {0}),
               tensor_op(storage, 0, {2, 1, 3}, {3, 7, 1}),
               tensor_op(storage, 0, {3, 2}, {1, 3}),
               tensor_op(storage, 1, {2, 2}, {1, 3})})),
          shorts()));
  ASSERT_EQ(tensors.size(), 5U);
  EXPECT_THAT(numbers_in(tensors.at("0")), ElementsAre(1, 4, 2, 5));
  EXPECT_THAT(numbers_in(tensors.at("1")), ElementsAre(2, 2, 2));
  EXPECT_THAT(numbers_in(tensors.at("2")), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_FALSE(tensors.at("2").boxes.front().strides);
  EXPECT_THAT(numbers_in(tensors.at("3")), ElementsAre(0, 3, 1, 4, 2, 5));
  EXPECT_EQ(tensors.at("0").storage, tensors.at("4").storage);
}

TEST_F(TorchFiles, BoundTheSumOfRepeatedElements) {
  const std::string storage = storage_op("ShortStorage", "0");
  const auto list = [&](const std::vector<std::string>& tensors) {
    return stored_in_torch_file(put(pickle_of(dict_op(tensors)), shorts()));
  };
  // Each tensor takes 2 MiB; repeating it takes no more.
  std::vector<std::string> tensors;
  for (std::uint64_t i = 0; i < 3; ++i) {
    tensors.push_back(tensor_op(storage, i, {1 << 20}, {0}));
    tensors.push_back(tensors.back());
  }
  EXPECT_EQ(list(tensors).size(), 6U);
  for (std::uint64_t i = 3; i < 6; ++i) {
    tensors.push_back(tensor_op(storage, i, {1 << 20}, {0}));
  }
  expect_error<CheckpointError>(
      [&] { static_cast<void>(list(tensors)); }, "repeat their storages");
}

TEST_F(TorchFiles, BoundNamesAndWhatTheyList) {
  const std::string tensor =
      tensor_op(storage_op("ShortStorage", "0"), 0, {1}, {1});
  const auto list = [&](const std::string& value) {
    return stored_in_torch_file(put(pickle_of(value), shorts()));
  };
  const std::string name(4000, 'n');
  EXPECT_EQ(
      list(format("}}({}{}u", text_op(name), tensor)).begin()->first, name);
  expect_error<CheckpointError>(
      [&] {
        static_cast<void>(list(
            format("}}({}}}({}{}uu", text_op(name), text_op(name), tensor)));
      },
      "a name must have at most 4096 bytes");
  // Each dict contains the previous one sixteen times.
  std::string root = format(
      "}}({}{}{}{}u",
      text_op("x"),
      tensor,
      text_op("long"),
      text_op(std::string(200'000, 'p')));
  for (int level = 0; level < 4; ++level) {
    root +=
        "q\x01"  // remembers it
        "0}(";
    for (int i = 0; i < 16; ++i) {
      root += text_op(std::string(100, static_cast<char>('a' + i))) + "h\x01";
    }
    root += "u";
  }
  expect_error<CheckpointError>(
      [&] { static_cast<void>(list(root)); }, "the file repeats dictionaries");
}

TEST_F(TorchFiles, RefuseOtherFiles) {
  expect_error<CheckpointError>(
      [&] { TorchFile file(put("", "", "big")); }, "another byte order");
  TemporaryDirectory directory;
  std::ofstream(directory / "x", std::ios::binary) << archive({{"a", "b"}});
  expect_error<CheckpointError>(
      [&] { TorchFile file(directory / "x"); }, "it has no data.pkl");
  std::ofstream(directory / "y") << "plain text";
  expect_error<CheckpointError>(
      [&] { TorchFile file(directory / "y"); }, "does not end as an archive");
  expect_error<Error>([&] { TorchFile file(directory / "z"); }, "cannot open");
}

}  // namespace torch_file_test
}  // namespace accelerate::detail
