// How operations change the stack, the memo and the tree.
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/text.h"
#include "format/torch/pickle_reader.h"

namespace accelerate::detail {

void Pickle::charge(std::size_t bytes) {
  used_bytes_ += bytes;
  if (used_bytes_ > most_bytes_) {
    fail(format("it would take more than {} bytes of memory", most_bytes_));
  }
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

void Pickle::append(std::vector<std::uint32_t> items, Kind kind) {
  const std::uint32_t top = pop();
  stack_.push_back(top);
  Node target = nodes_[top];
  // Items added to the result of a call (an OrderedDict, for example) are kept
  // as its state.
  if (target.kind == Kind::call) {
    const std::uint64_t call = target.payload;
    if (containers_[call].size() < 3) {
      push_container(kind, {});
      containers_[call].push_back(pop());
    }
    target = nodes_[containers_[call][2]];
    if (target.kind != kind) fail("items are added to an object");
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

void Pickle::push_dict(std::vector<std::uint32_t> items) {
  if (items.size() % 2 != 0) fail("a key has no value");
  push_container(Kind::dict, std::move(items));
}

std::vector<std::uint32_t> Pickle::pop_several(std::size_t count) {
  std::vector<std::uint32_t> items(count);
  for (std::size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

// "module
// name
// " is kept unchanged.
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

void Pickle::push_call() {
  const std::uint32_t arguments = pop();
  const std::uint32_t callee = pop();
  // Python may call what another call returned.
  const Kind called = nodes_[callee].kind;
  if ((called != Kind::global && called != Kind::call) ||
      nodes_[arguments].kind != Kind::tuple) {
    fail("a call is not of a class or function");
  }
  push_container(Kind::call, {callee, arguments});
}

void Pickle::push_call_with_keywords() {
  const std::uint32_t keywords = pop();
  push_call();
  stack_.push_back(keywords);
  set_state();
}

// An OrderedDict has entries, even if there are none.
void Pickle::set_state() {
  const std::uint32_t state = pop();
  const std::uint32_t target = pop();
  stack_.push_back(target);
  if (nodes_[target].kind != Kind::call) {
    fail("a state is set on a value that is not an object");
  }
  const std::uint64_t call = nodes_[target].payload;
  const bool is_empty_dict = containers_[call].size() < 3 &&
      Value(*this, target).is_call_of("collections OrderedDict");
  if (is_empty_dict) {
    push_container(Kind::dict, {});
    containers_[call].push_back(pop());
  }
  if (containers_[call].size() > 3) fail("an object has two states");
  charge(sizeof state);
  containers_[call].push_back(state);
}

}  // namespace accelerate::detail
