#pragma once

#include <array>
#include <initializer_list>

namespace accelerate::detail::pickle {

/// The operations that a pickle of data needs, named as in Python's
/// pickletools.
enum Operation : unsigned char {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kBinFloat = 'G',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kBinBytes8 = 0x8e,
  kByteArray8 = 0x96,
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kEmptyList = ']',
  kList = 'l',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyDict = '}',
  kDict = 'd',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kNewObject = 0x81,
  kNewObjectWithKeywords = 0x92,
  kBuild = 'b',
  kBinPersistent = 'Q',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
  kProtocol = 0x80,
  kFrame = 0x95,
};

/// What an operation deals with.
enum class Subject : unsigned char {
  unknown,
  memo,
  number,
  text,
  container,
  stack,
  object,
  frame,
};

/// The function of each subject has a case for every operation listed here.
inline constexpr std::array<Subject, 256> kSubjects = [] {
  std::array<Subject, 256> subjects{};
  const auto set = [&](Subject subject,
                       std::initializer_list<Operation> operations) {
    for (const Operation operation : operations) subjects[operation] = subject;
  };
  set(Subject::memo, {kBinPut, kLongBinPut, kMemoize, kBinGet, kLongBinGet});
  set(Subject::number,
      {kNone,
       kTrue,
       kFalse,
       kBinInt,
       kBinInt1,
       kBinInt2,
       kLong1,
       kLong4,
       kBinFloat});
  set(Subject::text,
      {kShortBinString,
       kShortBinUnicode,
       kBinString,
       kBinUnicode,
       kBinUnicode8,
       kShortBinBytes,
       kBinBytes,
       kBinBytes8,
       kByteArray8});
  set(Subject::container,
      {kEmptyList,
       kEmptyDict,
       kEmptySet,
       kEmptyTuple,
       kList,
       kTuple,
       kFrozenSet,
       kDict,
       kTuple1,
       kTuple2,
       kTuple3,
       kAppend,
       kSetItem,
       kAppends,
       kAddItems,
       kSetItems});
  set(Subject::stack, {kMark, kPop, kPopMark, kDup});
  set(Subject::object,
      {kGlobal,
       kStackGlobal,
       kReduce,
       kNewObject,
       kNewObjectWithKeywords,
       kBuild,
       kBinPersistent});
  set(Subject::frame, {kProtocol, kFrame, kStop});
  return subjects;
}();

}  // namespace accelerate::detail::pickle
