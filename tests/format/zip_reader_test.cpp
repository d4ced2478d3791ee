#include "format/torch/zip_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "format/archive.h"
#include "support/expect_error.h"

namespace accelerate::detail {
namespace zip_reader_test {

using testing::archive;
using testing::as_bytes;
using testing::expect_error;

std::string contents_of(const ZipReader& zip, const std::string& name) {
  const auto bytes = zip.at(name).bytes;
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(Crc32, IsTheStandardOne) {
  EXPECT_EQ(crc32(as_bytes("")), 0U);
  EXPECT_EQ(crc32(as_bytes("123456789")), 0xcbf43926U);
  EXPECT_EQ(
      crc32(as_bytes("The quick brown fox jumps over the lazy dog")),
      0x414fa339U);
}

TEST(ZipReader, FindsStoredFiles) {
  for (const bool is_zip64 : {false, true}) {
    const std::string file = archive(
        {{"a/data.pkl", "hello"}, {"a/data/0", ""}, {"b", "x"}},
        is_zip64,
        "PK\5\6 in a comment");
    const ZipReader zip(as_bytes(file), "x.pt");
    EXPECT_EQ(zip.entries().size(), 3U);
    EXPECT_EQ(contents_of(zip, "a/data.pkl"), "hello");
    EXPECT_EQ(contents_of(zip, "a/data/0"), "");
    zip.verify("a/data.pkl");
    expect_error<CheckpointError>(
        [&] { static_cast<void>(zip.at("c")); }, "has no entry 'c'");
  }
}

TEST(ZipReader, NoticesChangedContents) {
  std::string file = archive({{"a", "hello"}});
  file[file.find("hello")] = 'H';
  const ZipReader zip(as_bytes(file), "x.pt");
  expect_error<CheckpointError>([&] { zip.verify("a"); }, "'a' have changed");
}

TEST(ZipReader, RefusesACompressedEntryWhenItIsNeeded) {
  const std::string file = archive({{"code", "b", 8}, {"data", "hello"}});
  const ZipReader zip(as_bytes(file), "x.pt");
  EXPECT_EQ(zip.at("data").bytes.size(), 5U);
  expect_error<CheckpointError>(
      [&] { static_cast<void>(zip.at("code")); },
      "x.pt cannot be read: 'code' is compressed or encrypted");
  expect_error<CheckpointError>(
      [&] { zip.verify("code"); }, "'code' is compressed");
}

TEST(ZipReader, RefusesWhatItCannotRead) {
  const auto refuse = [](const std::string& file, const std::string& phrase) {
    expect_error<CheckpointError>(
        [&] { ZipReader(as_bytes(file), "x.pt"); }, phrase);
  };
  refuse("", "does not end as an archive");
  refuse("PK\5\6", "does not end as an archive");
  refuse(archive({{"a", "b"}, {"a", "c"}}), "'a' appears twice");
  const std::string valid = archive({{"a", "hello"}});
  refuse(valid.substr(0, valid.size() - 1), "does not end as an archive");
  // The directory claims more entries than exist.
  std::string file = valid;
  file[file.size() - 12] = '\x7f';
  refuse(file, "directory is not inside");
  file = valid;
  file[file.size() - 6] = '\1';
  refuse(file, "of its directory is invalid");
}

TEST(ZipReader, TakesAnyBytesWithoutHarm) {
  const std::string valid = archive({{"a", "hello"}, {"b", "x"}}, true);
  EXPECT_TRUE(rc::check([&] {
    std::string file = valid;
    const int num_changes = *rc::gen::inRange(0, 6);
    for (int i = 0; i < num_changes; ++i) {
      file[*rc::gen::inRange<std::size_t>(0, file.size())] =
          *rc::gen::arbitrary<char>();
    }
    if (*rc::gen::arbitrary<bool>()) {
      file.erase(0, *rc::gen::inRange<std::size_t>(0, file.size() + 1));
    }
    try {
      const ZipReader zip(as_bytes(file), "x");
      for (const auto& [name, entry] : zip.entries()) {
        static_cast<void>(crc32(entry.bytes));
      }
    } catch (const CheckpointError&) {
    }
  }));
}

}  // namespace zip_reader_test
}  // namespace accelerate::detail
