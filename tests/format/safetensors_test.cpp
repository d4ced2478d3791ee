#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>
#include <accelerate/safetensors.h>

#include "base/files/page_cache.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace accelerate::safetensors {
namespace safetensors_test {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::TemporaryDirectory;

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A file with this header and number of data bytes.
std::string file_of(const std::string& header, std::size_t num_data) {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  return file + header + std::string(num_data, 'd');
}

Header parse(const std::string& file) {
  return parse_header(as_bytes(file), file.size(), "x");
}

void expect_refused(const std::string& file, const std::string& phrase) {
  expect_error<CheckpointError>([&] { parse(file); }, phrase);
}

TEST(Safetensors, NamesEveryDtype) {
  EXPECT_EQ(name_of(Dtype::BOOL), "BOOL");
  EXPECT_EQ(name_of(Dtype::U64), "U64");
  for (int i = 0; i <= static_cast<int>(Dtype::U64); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("f32"), std::nullopt);
  EXPECT_EQ(bits_of(Dtype::F6_E3M2), 6);
  EXPECT_EQ(bits_of(Dtype::C64), 64);
}

TEST(Safetensors, CountsBytesWithoutOverflow) {
  EXPECT_EQ(bytes_of(Dtype::F32, {}), 4U);
  EXPECT_EQ(bytes_of(Dtype::BF16, {3, 5}), 30U);
  EXPECT_EQ(bytes_of(Dtype::I64, {3, 0, 5}), 0U);
  EXPECT_EQ(bytes_of(Dtype::F4, {4}), 2U);
  EXPECT_EQ(bytes_of(Dtype::F4, {3}), std::nullopt);
  const std::uint64_t huge = std::uint64_t{1} << 63;
  EXPECT_EQ(bytes_of(Dtype::U8, {huge, 2}), std::nullopt);
  EXPECT_EQ(bytes_of(Dtype::U8, {huge, 2, 0}), std::nullopt);
  EXPECT_EQ(bytes_of(Dtype::U8, {0, huge, 2}), 0U);
}

TEST(Safetensors, ReadsAHeader) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},)"
      R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
      R"("a":{"shape":[],"data_offsets":[0,4],"dtype":"I32"}}   )";
  const Header found = parse(file_of(header, 12));
  EXPECT_EQ(found.data_begin, 8 + header.size());
  EXPECT_EQ(found.metadata.at("format"), "pt");
  EXPECT_EQ(found.tensors.size(), 2U);
  EXPECT_EQ(found.tensors.at("a").dtype, Dtype::I32);
  EXPECT_TRUE(found.tensors.at("a").shape.empty());
  EXPECT_THAT(found.tensors.at("b").shape, ElementsAre(2U));
  EXPECT_EQ(found.tensors.at("b").begin, 4U);
}

TEST(Safetensors, ReadsWhatOtherWritersAdd) {
  for (const char* blanks : {"\n", "\r\n", "\t \n", "  "})
    EXPECT_TRUE(parse(file_of(std::string("{}") + blanks, 0)).tensors.empty());
  const Header found = parse(file_of(
      R"({"__metadata__":null,"w":{"dtype":"U8","shape":[1],)"
      R"("data_offsets":[0,1]}})",
      1));
  EXPECT_FALSE(found.has_metadata);
  EXPECT_EQ(found.tensors.size(), 1U);
}

TEST(Safetensors, SaysWhatIsWrong) {
  const auto entry = [](const std::string& fields) {
    return file_of("{\"w\":{" + fields + "}}", 4);
  };
  const std::string dtype = R"("dtype":"F32")", shape = R"("shape":[1])",
                    offsets = R"("data_offsets":[0,4])";
  const auto all = [](const std::string& a,
                      const std::string& b,
                      const std::string& c) { return a + "," + b + "," + c; };
  EXPECT_EQ(parse(entry(all(dtype, shape, offsets))).tensors.size(), 1U);
  expect_refused("", "it has 0 bytes, too few for a header");
  expect_refused(std::string(8, '\xff'), "at most 100000000 are read");
  expect_refused(
      file_of("{}", 0).substr(0, 9), "more than the file has: it is torn");
  expect_refused(file_of(" {}", 0), "followed by blanks at most");
  expect_refused(file_of("{}\v", 0), "followed by blanks at most");
  expect_refused(file_of("{}}", 0), "its header is wrong");
  expect_refused(
      entry(all(R"("dtype":"f32")", shape, offsets)),
      "dtype 'f32' is not known");
  expect_refused(entry(dtype + "," + shape), "'w': it lacks one of");
  expect_refused(
      entry(all(dtype, shape, offsets) + R"(,"x":1)"),
      "field 'x' is not known");
  expect_refused(entry(all(dtype, shape, dtype)), "field 'dtype' occurs twice");
  expect_refused(
      entry(all(dtype, R"("shape":[-1])", offsets)), "a negative number");
  expect_refused(entry(all(dtype, R"("shape":[1.0])", offsets)), "fractional");
  expect_refused(
      entry(all(dtype, R"("shape":[[1]])", offsets)), "a list is in");
  expect_refused(
      entry(all(dtype, R"("shape":["1"])", offsets)), "a string is in");
  expect_refused(
      entry(all(dtype, R"("shape":{})", offsets)), "an object is in");
  expect_refused(entry(all(dtype, R"("shape":1)", offsets)), "a number is in");
  expect_refused(entry(all(dtype, "\"shape\":null", offsets)), "null is in");
  expect_refused(
      entry(all(dtype, shape, R"("data_offsets":[0])")), "fewer than two");
  expect_refused(
      entry(all(dtype, shape, R"("data_offsets":[0,4,4])")), "more than two");
  expect_refused(
      entry(all(dtype, R"("shape":[2])", offsets)),
      "do not match its shape and dtype");
  expect_refused(
      entry(all(dtype, shape, R"("data_offsets":[4,0])")), "swapped bounds");
  expect_refused(
      entry(all(dtype, shape, R"("data_offsets":[1,5])")),
      "a hole, an overlap");
  expect_refused(
      entry(all(dtype, shape, offsets)) + "x", "or something was appended");
  expect_refused(file_of(R"({"w":null})", 0), "null is in");
  expect_refused(file_of(R"({"w":[]})", 0), "a list is in");
  expect_refused(file_of(R"({"__metadata__":{"a":1}})", 0), "a number is in");
  expect_refused(
      file_of(R"({"__metadata__":{"a":"1","a":"1"}})", 0),
      "key 'a' occurs twice");
  expect_refused(
      file_of(R"({"__metadata__":{},"__metadata__":{}})", 0),
      "it is given twice");
  expect_refused(
      file_of(std::string(100'000, '['), 0), "followed by blanks at most");
  expect_refused(
      file_of("{\"a\":" + std::string(100'000, '[') + "}", 0), "a list is in");
}

TEST(Safetensors, LimitsDimensionsAndShowsNamesOnly) {
  const auto of_dims = [](std::size_t num_dims) {
    std::string sizes = "1";
    for (std::size_t i = 1; i < num_dims; ++i) sizes += ",1";
    return file_of(
        R"({"w":{"dtype":"F32","shape":[)" + sizes +
            R"(],"data_offsets":[0,4]}})",
        4);
  };
  EXPECT_EQ(parse(of_dims(64)).tensors.at("w").shape.size(), 64U);
  expect_refused(of_dims(65), "'w': its shape has more than 64 dimensions");
  expect_refused(
      file_of(R"({"\u001b[2J":{"dtype":"F32"}})", 0),
      R"('\x1b[2J': it lacks one of)");
  expect_refused(
      file_of("{\"" + std::string(1'000'000, 'x') + "\":1}", 0), "x...x");
  try {
    parse(file_of("{\"a\" 1}", 0));
    ADD_FAILURE();
  } catch (const CheckpointError& error) {
    EXPECT_THAT(
        error.what(),
        ::testing::AllOf(
            ::testing::HasSubstr("its header is wrong: line 1, column 6:"),
            ::testing::Not(::testing::HasSubstr("json.exception"))));
  }
}

class Files : public ::testing::Test {
 protected:
  [[nodiscard]] std::filesystem::path path() const {
    return directory_ / "x.safetensors";
  }
  void put(const std::string& contents) const {
    std::ofstream(path(), std::ios::binary) << contents;
  }
  [[nodiscard]] std::string contents() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  TemporaryDirectory directory_;
};

using SafetensorsFile = Files;

TEST_F(SafetensorsFile, IsWrittenAsTheReferenceWriterDoes) {
  Writer writer(
      path(),
      {{"b", Dtype::U8, {3}},
       {"z", Dtype::F32, {1}},
       {"a", Dtype::F32, {}},
       {"e", Dtype::I64, {0}}},
      {{"format", "pt"}});
  EXPECT_THAT(writer.order(), ElementsAre("e", "a", "z", "b"));
  // Writes in pieces of any size.
  writer.write(as_bytes("aaaaz"));
  writer.write(as_bytes("zzzbbb"));
  writer.finish();
  EXPECT_EQ(
      contents(),
      file_of(
          R"({"__metadata__":{"format":"pt"},"e":{"dtype":"I64","shape":[0],"data_offsets":[0,0]},)"
          R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
          R"("z":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},)"
          R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}}     )",
          0) +
          "aaaazzzzbbb");
  const Reader reader(path());
  EXPECT_EQ(reader.bytes("b").size(), 3U);
  EXPECT_EQ(std::to_integer<char>(reader.bytes("z")[0]), 'z');
  expect_error<CheckpointError>(
      [&] { static_cast<void>(reader.bytes("ab")); }, "has no tensor 'ab'");
}

TEST_F(SafetensorsFile, RefusesToWriteWhatCannotBeRead) {
  const auto refuse = [&](const std::vector<Declaration>& tensors,
                          const std::string& phrase) {
    expect_error<CheckpointError>([&] { lay_out(tensors); }, phrase);
  };
  refuse({{"a", Dtype::U8, {1}}, {"a", Dtype::F32, {1}}}, "declared twice");
  refuse({{"__metadata__", Dtype::U8, {1}}}, "the format's own");
  refuse({{"a", Dtype::F4, {1}}}, "not a whole number");
  refuse({{"a", Dtype::U8, Shape(65, 1)}}, "more than 64 dimensions");
  refuse({{"a", Dtype::F64, {std::uint64_t{1} << 60}}}, "too many bytes");
  Writer writer(path(), {{"a", Dtype::U8, {2}}});
  expect_error<CheckpointError>(
      [&] { writer.write(as_bytes("abc")); }, "exceeds the 2 bytes");
  writer.write(as_bytes("a"));
  expect_error<CheckpointError>([&] { writer.finish(); }, "1 of 2 bytes");
  EXPECT_FALSE(std::filesystem::exists(path()));
  expect_error<Error>(
      [&] { Writer("/nowhere/x", {}); }, "cannot create /nowhere/x");
}

TEST_F(SafetensorsFile, ReadsSlicesOfTensors) {
  EXPECT_TRUE(rc::check([&] {
    const auto shape = *rc::gen::container<Shape>(
        *rc::gen::inRange(0, 5), rc::gen::inRange<std::uint64_t>(0, 5));
    const auto count = std::accumulate(
        shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
    std::vector<std::uint16_t> values(count);
    std::iota(values.begin(), values.end(), std::uint16_t{0});
    Writer writer(path(), {{"t", Dtype::U16, shape}, {"odd", Dtype::U8, {1}}});
    writer.write(std::as_bytes(std::span(values)));
    writer.write(as_bytes("x"));
    writer.finish();
    Box box;
    std::vector<std::uint16_t> expected{0};
    for (const std::uint64_t size : shape) {
      box.begin.push_back(*rc::gen::inRange<std::uint64_t>(0, size + 1));
      box.size.push_back(
          *rc::gen::inRange<std::uint64_t>(0, size - box.begin.back() + 1));
      std::vector<std::uint16_t> longer;
      for (const std::uint16_t prefix : expected) {
        for (std::uint64_t i = 0; i < box.size.back(); ++i) {
          longer.push_back(
              static_cast<std::uint16_t>(prefix * size + box.begin.back() + i));
        }
      }
      expected = std::move(longer);
    }
    std::vector<std::uint16_t> found(expected.size());
    const Reader reader(path());
    reader.read("t", box, std::as_writable_bytes(std::span(found)));
    RC_ASSERT(found == expected);
  }));
}

TEST_F(SafetensorsFile, RefusesInvalidSlices) {
  Writer writer(path(), {{"t", Dtype::U8, {2, 3}}, {"f", Dtype::F4, {4}}});
  writer.write(as_bytes("abcdefgh"));
  writer.finish();
  const Reader reader(path());
  std::vector<std::byte> out(2);
  const auto refuse = [&](const std::string& name,
                          const Box& box,
                          const std::string& phrase) {
    expect_error<CheckpointError>([&] { reader.read(name, box, out); }, phrase);
  };
  refuse("t", {{0}, {2}}, "a different number of dimensions");
  refuse("t", {{0, 2}, {1, 2}}, "not inside");
  refuse("t", {{0, ~std::uint64_t{0}}, {1, 2}}, "not inside");
  refuse("t", {{0, 0}, {1, 3}}, "a different number of bytes");
  refuse("f", {{0}, {4}}, "smaller than a byte");
  refuse("T", {{0}, {4}}, "has no tensor 'T'");
}

TEST_F(SafetensorsFile, ReadsWhatWasWritten) {
  EXPECT_TRUE(rc::check([&] {
    const auto names = *rc::gen::unique<std::vector<std::string>>(
        rc::gen::nonEmpty<std::string>());
    std::vector<Declaration> tensors;
    for (std::string name : names) {
      for (char& c : name) c = static_cast<char>(c & 0x7f);
      const auto dtype = static_cast<Dtype>(
          *rc::gen::inRange(0, static_cast<int>(Dtype::U64) + 1));
      Shape shape =
          *rc::gen::container<Shape>(rc::gen::inRange<std::uint64_t>(0, 4));
      constexpr std::size_t kMostDimensions = 64;
      shape.resize(std::min(shape.size(), kMostDimensions - 1));
      shape.push_back(8);
      tensors.push_back({std::move(name), dtype, std::move(shape)});
    }
    const auto metadata =
        *rc::gen::container<std::map<std::string, std::string>>(
            rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127)),
            rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127)));
    Header header;
    try {
      header = lay_out(tensors, metadata);
    } catch (const CheckpointError&) {
      RC_DISCARD("two names became one");
    }
    std::uint64_t data = 0;
    for (const auto& [name, info] : header.tensors)
      data = std::max(data, info.end);
    const std::string start = header_bytes(header);
    RC_ASSERT(start.size() % 8 == 0);
    const Header found =
        parse_header(as_bytes(start), start.size() + data, "x");
    RC_ASSERT(found.metadata == metadata);
    RC_ASSERT(found.data_begin == header.data_begin);
    RC_ASSERT(found.tensors.size() == header.tensors.size());
    for (const auto& [name, info] : header.tensors) {
      const TensorInfo& same = found.tensors.at(name);
      RC_ASSERT(same.dtype == info.dtype);
      RC_ASSERT(same.shape == info.shape);
      RC_ASSERT(same.begin == info.begin);
      RC_ASSERT(same.end == info.end);
      // The data is aligned to its elements.
      RC_ASSERT(info.begin % std::max(1, bits_of(info.dtype) / 8) == 0);
    }
  }));
}

TEST(Safetensors, TakesAnyBytesWithoutHarm) {
  const std::string valid = file_of(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})",
      8);
  EXPECT_TRUE(rc::check([&] {
    std::string file = valid;
    const int num_changes = *rc::gen::inRange(0, 5);
    for (int i = 0; i < num_changes; ++i) {
      file[*rc::gen::inRange<std::size_t>(0, file.size())] =
          *rc::gen::arbitrary<char>();
    }
    file.resize(*rc::gen::inRange<std::size_t>(0, file.size() + 1));
    try {
      parse(file);
    } catch (const CheckpointError&) {
    }
  }));
}

// Data around it would be read twice by a load, which reads past the page cache.
TEST(SafetensorsReader, ReadsOnlyTheHeaderOfAColdFile) {
  constexpr std::size_t kFirst = 64U << 10U;  // read with any header
  constexpr std::size_t kData = 4U << 20U;
  const TemporaryDirectory directory;
  for (const std::size_t padding : {std::size_t{0}, 3 * kFirst}) {
    const std::string header =
        R"({"a":{"dtype":"U8","shape":[4194304],"data_offsets":[0,4194304]}})" +
        std::string(padding, ' ');
    const auto path = directory / "model.safetensors";
    std::ofstream(path, std::ios::binary) << file_of(header, kData);
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(::fsync(file), 0);
    ASSERT_EQ(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
    const std::size_t begin = kFirst + padding + 4096;
    const bool is_cold = !detail::is_mostly_cached(file, 0, begin + kData / 2);
    const Reader reader(path);
    EXPECT_EQ(reader.info("a").num_bytes(), kData);
    // One byte is asked for, so that any cached page would count.
    bool has_data = false;
    for (std::size_t at = begin; at < begin + kData / 2; at += 4096)
      has_data |= detail::is_completely_cached(file, at, 1);
    ::close(file);
    if (!is_cold) GTEST_SKIP() << "the file system keeps its pages";
    EXPECT_FALSE(has_data) << padding;
  }
}

}  // namespace safetensors_test
}  // namespace accelerate::safetensors
