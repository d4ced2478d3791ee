#include "format/torch/pickle_reader.h"

#include <array>
#include <initializer_list>
#include <limits>
#include <utility>

#include <accelerate/error.h>

#include "base/text.h"

// Operations and their meaning are those of Python's pickletools.
namespace accelerate::detail {

namespace {

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

// The function of each subject has a case for every operation listed here.
constexpr std::array<Subject, 256> kSubjects = [] {
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
       kBinBytes8});
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
      {kGlobal, kStackGlobal, kReduce, kNewObject, kBuild, kBinPersistent});
  set(Subject::frame, {kProtocol, kFrame, kStop});
  return subjects;
}();

constexpr unsigned kNewestProtocol = 5;

}  // namespace

Pickle::Pickle(
    std::span<const std::byte> input,
    std::string name,
    std::size_t most_bytes)
    : input_(input), name_(std::move(name)), most_bytes_(most_bytes) {
  run();
}

void Pickle::fail(const std::string& what) const {
  throw CheckpointError(format("[torch] {} at byte {}: {}", name_, at_, what));
}

void Pickle::charge(std::size_t bytes) {
  used_bytes_ += bytes;
  if (used_bytes_ > most_bytes_) {
    fail(format("it would take more than {} bytes of memory", most_bytes_));
  }
}

template <class Number>
Number Pickle::take() {
  const std::string_view bytes = take_bytes(sizeof(Number));
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) {
    value =
        static_cast<Number>(value << 8) | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::string_view Pickle::take_bytes(std::uint64_t size) {
  if (size > input_.size() - at_) fail("it is torn");
  const std::string_view bytes(
      reinterpret_cast<const char*>(input_.data()) + at_, size);
  at_ += size;
  return bytes;
}

std::string_view Pickle::take_line() {
  const std::string_view rest(
      reinterpret_cast<const char*>(input_.data()) + at_, input_.size() - at_);
  const std::size_t end = rest.find('\n');
  if (end == std::string_view::npos) fail("it is torn");
  at_ += end + 1;
  return rest.substr(0, end);
}

std::uint32_t Pickle::add(const Node& node) {
  charge(sizeof(Node) + sizeof(std::uint32_t));
  nodes_.push_back(node);
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

void Pickle::push_text(Kind kind, std::uint64_t size) {
  if (size > std::numeric_limits<std::uint32_t>::max()) {
    fail("a string is longer than 4 GB");
  }
  const std::size_t begin = at_;
  take_bytes(size);
  push({kind, static_cast<std::uint32_t>(size), begin});
}

void Pickle::push_container(Kind kind, std::vector<std::uint32_t> items) {
  charge(sizeof items + items.size() * sizeof(std::uint32_t));
  containers_.push_back(std::move(items));
  push({kind, 0, containers_.size() - 1});
}

std::uint32_t Pickle::pop() {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) fail("it takes a value from an empty stack");
  const std::uint32_t node = stack_.back();
  stack_.pop_back();
  return node;
}

std::vector<std::uint32_t> Pickle::pop_to_mark() {
  if (marks_.empty()) fail("a mark is missing");
  const auto begin =
      stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<std::uint32_t> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void Pickle::append(std::vector<std::uint32_t> items) {
  const std::uint32_t top = pop();
  stack_.push_back(top);
  Node target = nodes_[top];
  // Items added to the result of a call (an OrderedDict, say) are kept as its
  // state.
  if (target.kind == Kind::call) {
    const std::uint64_t call = target.payload;
    if (containers_[call].size() < 3) {
      push_container(Kind::dict, {});
      containers_[call].push_back(pop());
    }
    target = nodes_[containers_[call][2]];
    if (target.kind != Kind::dict) fail("items are added to an object");
  }
  const bool is_dict = target.kind == Kind::dict;
  if (!is_dict && target.kind != Kind::list && target.kind != Kind::set) {
    fail("items are added to a value that is not a container");
  }
  if (is_dict && items.size() % 2 != 0) fail("a key has no value");
  charge(items.size() * sizeof(std::uint32_t));
  auto& all = containers_[target.payload];
  all.insert(all.end(), items.begin(), items.end());
}

void Pickle::remember(std::uint64_t key) {
  const std::uint32_t node = pop();
  stack_.push_back(node);
  constexpr std::size_t kEntryBytes = 48;
  if (memo_.insert_or_assign(key, node).second) charge(kEntryBytes);
}

void Pickle::recall(std::uint64_t key) {
  const auto found = memo_.find(key);
  if (found == memo_.end()) fail(format("the memo has no entry {}", key));
  charge(sizeof(std::uint32_t));
  stack_.push_back(found->second);
}

void Pickle::run() {
  while (!has_stopped_) {
    if (at_ >= input_.size()) fail("it is torn");
    step(take<unsigned char>());
  }
  measure();
}

void Pickle::step(unsigned char operation) {
  switch (kSubjects[operation]) {
    case Subject::memo:
      return step_memo(operation);
    case Subject::number:
      return step_number(operation);
    case Subject::text:
      return step_text(operation);
    case Subject::container:
      return step_container(operation);
    case Subject::stack:
      return step_stack(operation);
    case Subject::object:
      return step_object(operation);
    case Subject::frame:
      return step_frame(operation);
    case Subject::unknown:
      fail(format(
          "operation {} is not one that data needs",
          static_cast<unsigned>(operation)));
  }
}

void Pickle::step_memo(unsigned char operation) {
  switch (operation) {
    case kBinPut:
      remember(take<unsigned char>());
      return;
    case kLongBinPut:
      remember(take<std::uint32_t>());
      return;
    case kMemoize:
      remember(memo_.size());
      return;
    case kBinGet:
      recall(take<unsigned char>());
      return;
    case kLongBinGet:
      recall(take<std::uint32_t>());
      return;
  }
}

void Pickle::step_number(unsigned char operation) {
  switch (operation) {
    case kNone:
      push({Kind::none});
      return;
    case kTrue:
      push({Kind::boolean, 0, 1});
      return;
    case kFalse:
      push({Kind::boolean, 0, 0});
      return;
    case kBinInt:
      push(
          {Kind::integer,
           0,
           static_cast<std::uint64_t>(std::int64_t{
               static_cast<std::int32_t>(take<std::uint32_t>())})});
      return;
    case kBinInt1:
      push({Kind::integer, 0, take<unsigned char>()});
      return;
    case kBinInt2:
      push({Kind::integer, 0, take<std::uint16_t>()});
      return;
    case kLong1:
      push_long(take<unsigned char>());
      return;
    case kLong4:
      push_long(take<std::uint32_t>());
      return;
    case kBinFloat:
      push_real();
      return;
  }
}

void Pickle::step_text(unsigned char operation) {
  switch (operation) {
    case kShortBinString:
    case kShortBinUnicode:
      push_text(Kind::text, take<unsigned char>());
      return;
    case kBinString:
    case kBinUnicode:
      push_text(Kind::text, take<std::uint32_t>());
      return;
    case kBinUnicode8:
      push_text(Kind::text, take<std::uint64_t>());
      return;
    case kShortBinBytes:
      push_text(Kind::bytes, take<unsigned char>());
      return;
    case kBinBytes:
      push_text(Kind::bytes, take<std::uint32_t>());
      return;
    case kBinBytes8:
      push_text(Kind::bytes, take<std::uint64_t>());
      return;
  }
}

void Pickle::step_container(unsigned char operation) {
  switch (operation) {
    case kEmptyList:
      push_container(Kind::list, {});
      return;
    case kEmptyDict:
      push_container(Kind::dict, {});
      return;
    case kEmptySet:
      push_container(Kind::set, {});
      return;
    case kEmptyTuple:
      push_container(Kind::tuple, {});
      return;
    case kList:
      push_container(Kind::list, pop_to_mark());
      return;
    case kTuple:
      push_container(Kind::tuple, pop_to_mark());
      return;
    case kFrozenSet:
      push_container(Kind::set, pop_to_mark());
      return;
    case kDict:
      push_dict(pop_to_mark());
      return;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_container(Kind::tuple, pop_several(operation - kTuple1 + 1U));
      return;
    case kAppend:
      append(pop_several(1));
      return;
    case kSetItem:
      append(pop_several(2));
      return;
    case kAppends:
    case kAddItems:
    case kSetItems:
      append(pop_to_mark());
      return;
  }
}

void Pickle::step_stack(unsigned char operation) {
  switch (operation) {
    case kMark:
      charge(sizeof(std::size_t));
      marks_.push_back(stack_.size());
      return;
    case kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return;
    case kPopMark:
      pop_to_mark();
      return;
    case kDup: {
      const std::uint32_t node = pop();
      charge(sizeof node);
      stack_.insert(stack_.end(), {node, node});
      return;
    }
  }
}

void Pickle::step_object(unsigned char operation) {
  switch (operation) {
    case kGlobal:
      push_global_in_lines();
      return;
    case kStackGlobal:
      push_global();
      return;
    case kReduce:
    case kNewObject:
      push_call();
      return;
    case kBuild:
      set_state();
      return;
    case kBinPersistent:
      push_container(Kind::persistent, {pop()});
      return;
  }
}

void Pickle::step_frame(unsigned char operation) {
  switch (operation) {
    case kProtocol: {
      const unsigned protocol = take<unsigned char>();
      if (protocol > kNewestProtocol) {
        fail(format("its protocol is {}, and 5 is the newest known", protocol));
      }
      return;
    }
    case kFrame:
      take<std::uint64_t>();
      return;
    case kStop:
      root_ = pop();
      if (!stack_.empty() || !marks_.empty())
        fail("it leaves values on the stack");
      has_stopped_ = true;
      return;
  }
}

void Pickle::push_long(std::uint64_t size) {
  if (size > sizeof(std::int64_t)) {
    push_text(Kind::long_integer, size);
    return;
  }
  const std::string_view bytes = take_bytes(size);
  const bool is_negative =
      !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80U);
  std::uint64_t value = is_negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = bytes.size(); i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[i]);
  }
  push({Kind::integer, 0, value});
}

void Pickle::push_real() {
  std::uint64_t bits = 0;
  for (const char byte : take_bytes(sizeof bits)) {
    bits = bits << 8 | static_cast<unsigned char>(byte);
  }
  push({Kind::real, 0, bits});
}

void Pickle::push_dict(std::vector<std::uint32_t> items) {
  if (items.size() % 2 != 0) fail("a key has no value");
  push_container(Kind::dict, std::move(items));
}

std::vector<std::uint32_t> Pickle::pop_several(std::size_t count) {
  std::vector<std::uint32_t> items(count);
  for (std::size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

// "module\nname\n" is kept as it is.
void Pickle::push_global_in_lines() {
  const std::size_t begin = at_;
  take_line();
  take_line();
  const std::size_t size = at_ - begin - 1;
  if (size > std::numeric_limits<std::uint32_t>::max()) {
    fail("a name is too long");
  }
  push({Kind::global, static_cast<std::uint32_t>(size), begin});
}

void Pickle::push_call() {
  const std::uint32_t arguments = pop();
  const std::uint32_t callee = pop();
  if (nodes_[callee].kind != Kind::global ||
      nodes_[arguments].kind != Kind::tuple) {
    fail("a call is not of a class or function");
  }
  push_container(Kind::call, {callee, arguments});
}

void Pickle::set_state() {
  const std::uint32_t state = pop();
  const std::uint32_t target = pop();
  stack_.push_back(target);
  const Node& node = nodes_[target];
  if (node.kind != Kind::call) {
    fail("a state is set on a value that is not an object");
  }
  if (containers_[node.payload].size() < 3) {
    charge(sizeof state);
    containers_[node.payload].push_back(state);
  }
}

std::vector<Pickle::Value> Pickle::all(Kind kind) const {
  std::vector<Value> found;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind == kind) {
      found.push_back(Value(*this, static_cast<std::uint32_t>(i)));
    }
  }
  return found;
}

void Pickle::push_global() {
  const Node name = nodes_[pop()];
  const Node module = nodes_[pop()];
  if (name.kind != Kind::text || module.kind != Kind::text) {
    fail("the name of a class is not a string");
  }
  const auto text_of = [&](const Node& node) {
    return std::string_view(
        reinterpret_cast<const char*>(input_.data()) + node.payload, node.size);
  };
  charge(sizeof(std::string) + module.size + name.size + 1);
  names_.push_back(format("{}\n{}", text_of(module), text_of(name)));
  push(
      {Kind::global,
       static_cast<std::uint32_t>(names_.back().size()),
       kComposed | (names_.size() - 1)});
}

}  // namespace accelerate::detail
