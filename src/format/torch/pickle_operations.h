#pragma once

#include <array>
#include <initializer_list>

namespace accelerate::detail {

/// The operations of a pickle that data need, by the names of Python's
/// pickletools.
enum PickleOperation : unsigned char {
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

/// What an operation is about.
enum class PickleSubject : unsigned char {
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
inline constexpr std::array<PickleSubject, 256> kPickleSubjects = [] {
  std::array<PickleSubject, 256> subjects{};
  const auto set = [&](PickleSubject subject,
                       std::initializer_list<PickleOperation> operations) {
    for (const PickleOperation operation : operations)
      subjects[operation] = subject;
  };
  set(PickleSubject::memo,
      {kBinPut, kLongBinPut, kMemoize, kBinGet, kLongBinGet});
  set(PickleSubject::number,
      {kNone,
       kTrue,
       kFalse,
       kBinInt,
       kBinInt1,
       kBinInt2,
       kLong1,
       kLong4,
       kBinFloat});
  set(PickleSubject::text,
      {kShortBinString,
       kShortBinUnicode,
       kBinString,
       kBinUnicode,
       kBinUnicode8,
       kShortBinBytes,
       kBinBytes,
       kBinBytes8});
  set(PickleSubject::container,
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
  set(PickleSubject::stack, {kMark, kPop, kPopMark, kDup});
  set(PickleSubject::object,
      {kGlobal, kStackGlobal, kReduce, kNewObject, kBuild, kBinPersistent});
  set(PickleSubject::frame, {kProtocol, kFrame, kStop});
  return subjects;
}();

}  // namespace accelerate::detail
