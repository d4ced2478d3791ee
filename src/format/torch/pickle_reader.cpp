#include "format/torch/pickle_reader.h"

#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/text/text.h"
#include "format/torch/pickle_operations.h"

// Operations and their meaning are as in Python's pickletools.
namespace accelerate::detail {

namespace {

using namespace pickle;  // NOLINT: operations

constexpr unsigned kNewestProtocol = 5;

}  // namespace

/// The stack and the memo of nodes. Operations add nodes to the tree and join
/// those on the stack.
class Pickle::Machine {
 public:
  explicit Machine(Pickle& tree) : tree_(tree) {}

  /// Executes all operations, and returns the root.
  std::uint32_t run();

 private:
  void step(unsigned char operation);
  /// Each of these executes the operations of one subject.
  void step_memo(unsigned char operation);
  void step_number(unsigned char operation);
  void step_text(unsigned char operation);
  void step_container(unsigned char operation);
  void step_stack(unsigned char operation);
  void step_object(unsigned char operation);
  void step_frame(unsigned char operation);
  template <class Number>
  Number take();
  std::string_view take_bytes(std::uint64_t size);
  void push(const Node& node) { stack_.push_back(tree_.add(node)); }
  void push_text(Kind kind, std::uint64_t size);
  /// Reads an integer of `size` bytes.
  void push_long(std::uint64_t size);
  void push_container(Kind kind, std::vector<std::uint32_t> items);
  /// Reads a module and a name, one line each.
  void push_global_in_lines();
  void push_call();
  /// Gives the state on top of the stack to the object below it.
  void set_state();
  /// Appends to the container on top of the stack, see Pickle::append().
  void append(const std::vector<std::uint32_t>& items, Kind kind);
  std::uint32_t top();
  std::uint32_t pop();
  /// Pops `count` values; the last one returned was on top.
  std::vector<std::uint32_t> pop_several(std::size_t count);
  std::vector<std::uint32_t> pop_to_mark();
  void remember(std::uint64_t key);
  void recall(std::uint64_t key);

  Pickle& tree_;
  std::optional<std::uint32_t> root_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, std::uint32_t> memo_;
};

Pickle::Pickle(
    std::span<const std::byte> input,
    std::string name,
    std::size_t most_bytes)
    : input_(input), name_(std::move(name)), most_bytes_(most_bytes) {
  root_ = Machine(*this).run();
  measure();
}

template <class Number>
Number Pickle::Machine::take() {
  const std::string_view bytes = take_bytes(sizeof(Number));
  Number value = 0;
  for (std::size_t i = sizeof(Number); i-- > 0;) {
    value =
        static_cast<Number>(value << 8) | static_cast<unsigned char>(bytes[i]);
  }
  return value;
}

std::string_view Pickle::Machine::take_bytes(std::uint64_t size) {
  if (size > tree_.input_.size() - tree_.at_) tree_.fail("it is torn");
  const std::string_view bytes(
      reinterpret_cast<const char*>(tree_.input_.data()) + tree_.at_, size);
  tree_.at_ += size;
  return bytes;
}

std::uint32_t Pickle::Machine::run() {
  while (!root_) step(take<unsigned char>());
  return *root_;
}

void Pickle::Machine::step(unsigned char operation) {
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
      tree_.fail(format(
          "operation {} is not one that data needs",
          static_cast<unsigned>(operation)));
  }
}

void Pickle::Machine::step_memo(unsigned char operation) {
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

void Pickle::Machine::step_number(unsigned char operation) {
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
    case kBinFloat: {
      std::uint64_t bits = 0;
      for (const char byte : take_bytes(sizeof bits))
        bits = bits << 8 | static_cast<unsigned char>(byte);
      push({Kind::real, 0, bits});
      return;
    }
  }
}

void Pickle::Machine::step_text(unsigned char operation) {
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
    case kByteArray8:
      push_text(Kind::bytes, take<std::uint64_t>());
      return;
  }
}

void Pickle::Machine::step_container(unsigned char operation) {
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
      push_container(Kind::dict, pop_to_mark());
      return;
    case kTuple1:
    case kTuple2:
    case kTuple3:
      push_container(Kind::tuple, pop_several(operation - kTuple1 + 1U));
      return;
    case kAppend:
      append(pop_several(1), Kind::list);
      return;
    case kSetItem:
      append(pop_several(2), Kind::dict);
      return;
    case kAppends:
      append(pop_to_mark(), Kind::list);
      return;
    case kAddItems:
      append(pop_to_mark(), Kind::set);
      return;
    case kSetItems:
      append(pop_to_mark(), Kind::dict);
      return;
  }
}

void Pickle::Machine::step_stack(unsigned char operation) {
  switch (operation) {
    case kMark:
      tree_.charge(sizeof(std::size_t));
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
      tree_.charge(sizeof node);
      stack_.insert(stack_.end(), {node, node});
      return;
    }
  }
}

void Pickle::Machine::step_object(unsigned char operation) {
  switch (operation) {
    case kGlobal:
      push_global_in_lines();
      return;
    case kStackGlobal: {
      const std::uint32_t name = pop();
      stack_.push_back(tree_.add_global(pop(), name));
      return;
    }
    case kReduce:
    case kNewObject:
      push_call();
      return;
    case kNewObjectWithKeywords: {
      const std::uint32_t keywords = pop();
      push_call();
      stack_.push_back(keywords);
      set_state();
      return;
    }
    case kBuild:
      set_state();
      return;
    case kBinPersistent:
      push_container(Kind::persistent, {pop()});
      return;
  }
}

void Pickle::Machine::step_frame(unsigned char operation) {
  switch (operation) {
    case kProtocol: {
      const unsigned protocol = take<unsigned char>();
      if (protocol > kNewestProtocol) {
        tree_.fail(
            format("its protocol is {}, and 5 is the newest known", protocol));
      }
      return;
    }
    case kFrame:
      take<std::uint64_t>();
      return;
    case kStop:
      root_ = pop();
      if (!stack_.empty() || !marks_.empty())
        tree_.fail("it leaves values on the stack");
      return;
  }
}

void Pickle::Machine::push_long(std::uint64_t size) {
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

void Pickle::Machine::push_text(Kind kind, std::uint64_t size) {
  if (size > std::numeric_limits<std::uint32_t>::max()) {
    tree_.fail("a string is longer than 4 GB");
  }
  const std::size_t begin = tree_.at_;
  take_bytes(size);
  push({kind, static_cast<std::uint32_t>(size), begin});
}

void Pickle::Machine::push_container(
    Kind kind,
    std::vector<std::uint32_t> items) {
  stack_.push_back(tree_.add_container(kind, std::move(items)));
}

// "module
// name
// " is kept unchanged.
void Pickle::Machine::push_global_in_lines() {
  const std::string_view text(
      reinterpret_cast<const char*>(tree_.input_.data()), tree_.input_.size());
  const std::size_t begin = tree_.at_;
  for (int line = 0; line < 2; ++line) {
    const std::size_t end = text.find('\n', tree_.at_);
    if (end == std::string_view::npos) tree_.fail("it is torn");
    tree_.at_ = end + 1;
  }
  const std::size_t size = tree_.at_ - begin - 1;
  if (size > std::numeric_limits<std::uint32_t>::max()) {
    tree_.fail("a name is too long");
  }
  push({Kind::global, static_cast<std::uint32_t>(size), begin});
}

void Pickle::Machine::push_call() {
  const std::uint32_t arguments = pop();
  stack_.push_back(tree_.add_call(pop(), arguments));
}

void Pickle::Machine::set_state() {
  const std::uint32_t state = pop();
  tree_.set_state(top(), state);
}

void Pickle::Machine::append(
    const std::vector<std::uint32_t>& items,
    Kind kind) {
  tree_.append(top(), items, kind);
}

std::uint32_t Pickle::Machine::top() {
  const std::size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor)
    tree_.fail("it takes a value from an empty stack");
  return stack_.back();
}

std::uint32_t Pickle::Machine::pop() {
  const std::uint32_t node = top();
  stack_.pop_back();
  return node;
}

std::vector<std::uint32_t> Pickle::Machine::pop_several(std::size_t count) {
  std::vector<std::uint32_t> items(count);
  for (std::size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

std::vector<std::uint32_t> Pickle::Machine::pop_to_mark() {
  if (marks_.empty()) tree_.fail("a mark is missing");
  const auto begin =
      stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<std::uint32_t> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void Pickle::Machine::remember(std::uint64_t key) {
  const std::uint32_t node = top();
  constexpr std::size_t kEntryBytes = 48;
  if (memo_.insert_or_assign(key, node).second) tree_.charge(kEntryBytes);
}

void Pickle::Machine::recall(std::uint64_t key) {
  const auto found = memo_.find(key);
  if (found == memo_.end()) tree_.fail(format("the memo has no entry {}", key));
  tree_.charge(sizeof(std::uint32_t));
  stack_.push_back(found->second);
}

}  // namespace accelerate::detail
