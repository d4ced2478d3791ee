#include "format/torch/pickle_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <accelerate/error.h>

#include "support/expect_error.h"

namespace accelerate::detail {
namespace pickle_reader_test {

using testing::expect_error;
using Kind = Pickle::Kind;
constexpr std::size_t kMost = 1 << 20;

Pickle read(const std::string& text, std::size_t most_bytes = kMost) {
  // Views of the pickle point into the string.
  static std::vector<std::unique_ptr<std::string>> kept;
  kept.push_back(std::make_unique<std::string>(text));
  return Pickle(std::as_bytes(std::span(*kept.back())), "x.pkl", most_bytes);
}

std::string with_zeros(const char* text, std::size_t size) {
  return {text, size};
}
#define PICKLE(text) with_zeros(text, sizeof(text) - 1)

TEST(Pickle, ReadsNumbersAndStrings) {
  // (None, True, False, 7, 300, -2, 2**40, -1 (long), 1.5, 'hi', b'x')
  const Pickle pickle =
      read(PICKLE("\x80\x02(N\x88\x89K\x07M\x2c\x01J\xfe\xff\xff\xff"
                  "\x8a\x06\x00\x00\x00\x00\x00\x01\x8a\x01\xff"
                  "G\x3f\xf8\x00\x00\x00\x00\x00\x00X\x02\x00\x00\x00hi"
                  "C\x01xtq\x00."));
  const Pickle::Value root = pickle.root();
  EXPECT_EQ(root.kind(), Kind::tuple);
  ASSERT_EQ(root.size(), 11U);
  EXPECT_EQ(root.item(0).kind(), Kind::none);
  EXPECT_EQ(root.item(1).integer(), 1);
  EXPECT_EQ(root.item(2).integer(), 0);
  EXPECT_EQ(root.item(3).integer(), 7);
  EXPECT_EQ(root.item(4).integer(), 300);
  EXPECT_EQ(root.item(5).integer(), -2);
  EXPECT_EQ(root.item(6).integer(), std::int64_t{1} << 40);
  EXPECT_EQ(root.item(7).integer(), -1);
  EXPECT_EQ(root.item(8).real(), 1.5);
  EXPECT_EQ(root.item(9).text(), "hi");
  EXPECT_EQ(root.item(10).kind(), Kind::bytes);
  EXPECT_EQ(root.item(10).text(), "x");
}

TEST(Pickle, ReadsContainersAndTheMemo) {
  // {'a': [1, 2], 'b': <the same list>}; the list is appended to afterwards
  const Pickle pickle =
      read(PICKLE("\x80\x02}q\x00(X\x01\x00\x00\x00"
                  "a]q\x01(K\x01K\x02"
                  "eX\x01\x00\x00\x00"
                  "bh\x01u."));
  const Pickle::Value root = pickle.root();
  ASSERT_EQ(root.size(), 2U);
  EXPECT_EQ(root.key(1).text(), "b");
  EXPECT_EQ(root.value(0).size(), 2U);
  EXPECT_EQ(root.value(1).item(1).integer(), 2);
  EXPECT_EQ(root.as_dict().size(), 2U);
}

TEST(Pickle, DescribesCallsWithoutExecutingThem) {
  // OrderedDict() with an entry, and a state
  const Pickle pickle = read(
      PICKLE("\x80\x02"
             "ccollections\nOrderedDict\n)Rq\x00X\x01\x00\x00\x00kK\x05s}b."));
  const Pickle::Value root = pickle.root();
  EXPECT_TRUE(root.is_call_of("collections OrderedDict"));
  EXPECT_FALSE(root.is_call_of("os system"));
  EXPECT_EQ(root.as_dict().value(0).integer(), 5);
  const Pickle evil =
      read(PICKLE("\x80\x02"
                  "cos\nsystem\nX\x04\x00\x00\x00true\x85R."));
  EXPECT_TRUE(evil.root().is_call_of("os system"));
  EXPECT_EQ(evil.root().item(1).item(0).text(), "true");
  const Pickle reference = read(PICKLE("\x80\x02K\x03Q."));
  EXPECT_EQ(reference.root().kind(), Kind::persistent);
  EXPECT_EQ(reference.root().item(0).integer(), 3);
}

// Walking such a tree would never end.
TEST(Pickle, RefusesTreesWithoutEnd) {
  expect_error<CheckpointError>(
      [] {
        read(
            PICKLE("\x80\x02]q\x00h\x00"
                   "a."));
      },
      "a value contains itself");
  // A pair of pairs of pairs..., where both items of each pair are the same.
  std::string doubled = "\x80\x02";
  doubled += "N";
  for (int i = 0; i < 60; ++i) doubled += "2\x86";
  expect_error<CheckpointError>(
      [&] { read(doubled + "."); }, "refers to the same values too often");
  expect_error<CheckpointError>(
      [] {
        read(
            "\x80\x02" + std::string(1, 'N') + std::string(5000, '\x85') + ".");
      },
      "nested too deeply");
}

TEST(Pickle, AllowsValuesToBeReferredToTwice) {
  std::string several = PICKLE(
      "\x80\x02]q\x00"
      "0(");
  for (int i = 0; i < 200; ++i) several += PICKLE("h\x00");
  EXPECT_EQ(read(several + "t.").root().size(), 200U);
}

TEST(Pickle, RefusesMalformedInput) {
  const auto refuse = [](const std::string& text, const std::string& phrase) {
    expect_error<CheckpointError>([&] { read(text); }, phrase);
  };
  refuse("", "x.pkl at byte 0: it is torn");
  refuse(PICKLE("\x80\x02K"), "it is torn");
  refuse(PICKLE("\x80\x02X\xff\xff\xff\xff"), "it is torn");
  refuse(PICKLE("\x80\x09."), "its protocol is 9");
  refuse(PICKLE("\x80\x02."), "takes a value from an empty stack");
  refuse(PICKLE("\x80\x02(."), "takes a value from an empty stack");
  refuse(PICKLE("\x80\x02NN."), "leaves values on the stack");
  refuse(PICKLE("\x80\x02t."), "a mark is missing");
  refuse(PICKLE("\x80\x02h\x05."), "the memo has no entry 5");
  refuse(
      PICKLE("\x80\x02(K\x01"
             "d."),
      "a key has no value");
  refuse(
      PICKLE("\x80\x02K\x01K\x02"
             "a."),
      "not a container");
  refuse(PICKLE("\x80\x02K\x01)R."), "not of a class or function");
  refuse(PICKLE("\x80\x02N}b."), "not an object");
  refuse(PICKLE("\x80\x02i"), "operation 105 is not one that data needs");
  refuse(
      PICKLE("\x80\x02"
             "cos\nsystem"),
      "it is torn");
  expect_error<CheckpointError>(
      [] { read("\x80\x02" + std::string(1000, ']') + ".", 4000); },
      "more than 4000 bytes of memory");
  const Pickle number = read(PICKLE("\x80\x02K\x01."));
  expect_error<CheckpointError>(
      [&] { static_cast<void>(number.root().text()); },
      "expected a string, but found a whole number");
  expect_error<CheckpointError>(
      [&] { static_cast<void>(number.root().size()); }, "a list, tuple");
  expect_error<CheckpointError>(
      [&] { static_cast<void>(number.root().as_dict()); }, "expected a dict");
}

TEST(Pickle, TakesAnyBytesWithoutHarm) {
  const std::string operations =
      PICKLE("\x80\x02()]}tesuabqhcKMJXG\x85\x86\x87N\x88R.Q\n\x94\x91\x8f");
  EXPECT_TRUE(rc::check([&] {
    const auto text = *rc::gen::container<std::string>(rc::gen::oneOf(
        rc::gen::elementOf(operations), rc::gen::arbitrary<char>()));
    try {
      read("\x80\x02" + text);
    } catch (const CheckpointError&) {
    }
  }));
}

}  // namespace pickle_reader_test
}  // namespace accelerate::detail
