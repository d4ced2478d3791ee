#include "format/torch/pickle_reader.h"

#include <utility>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/torch/pickle_operations.h"

// Operations and their meaning are as in Python's pickletools.
namespace accelerate::detail {

namespace {

using namespace pickle;  // NOLINT: operations

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
    case kByteArray8:
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
    case kNewObjectWithKeywords:
      push_call_with_keywords();
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

std::vector<Pickle::Value> Pickle::all(Kind kind) const {
  std::vector<Value> found;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind == kind) {
      found.push_back(Value(*this, static_cast<std::uint32_t>(i)));
    }
  }
  return found;
}

}  // namespace accelerate::detail
