#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text/text.h"
#include "format/torch/pickle_reader.h"

// How operations change the stack, the memo and the tree.

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

bool Pickle::is_container(Kind kind) {
  return kind == Kind::list || kind == Kind::tuple || kind == Kind::dict ||
      kind == Kind::set || kind == Kind::call || kind == Kind::persistent;
}

void Pickle::measure() {
  // Files written by Python rarely refer to a value twice.
  constexpr std::uint64_t kLeast = 100'000, kPlacesPerByte = 16;
  const std::uint64_t most = std::min<std::uint64_t>(
      kLeast + kPlacesPerByte * input_.size(), 0xF000'0000U);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (is_container(nodes_[i].kind) && nodes_[i].size == 0) {
      measure_from(i, most);
    }
  }
}

// Visits nodes depth first. Nodes on the current path have height kOpen, which
// reveals a node that contains itself.
void Pickle::measure_from(std::uint32_t start, std::uint64_t most_places) {
  constexpr std::size_t kMostLevels = 1000;
  constexpr std::uint16_t kOpen = 0xFFFF;
  struct Visit {
    std::uint32_t node;
    std::size_t next = 0;
    std::uint64_t places = 1;
    std::uint16_t height = 0;
  };
  std::vector<Visit> visits{{start}};
  nodes_[start].height = kOpen;
  while (!visits.empty()) {
    Visit& visit = visits.back();
    const auto& items = containers_[nodes_[visit.node].payload];
    if (visit.next == items.size()) {
      if (visit.places > most_places) {
        fail("it refers to the same values too often");
      }
      const Visit done = visit;
      nodes_[done.node].size = static_cast<std::uint32_t>(done.places);
      nodes_[done.node].height = done.height;
      visits.pop_back();
      if (!visits.empty()) {
        visits.back().places += done.places;
        visits.back().height =
            std::max<std::uint16_t>(visits.back().height, done.height + 1);
      }
      continue;
    }
    const std::uint32_t item = items[visit.next++];
    const Node& node = nodes_[item];
    if (!is_container(node.kind)) {
      ++visit.places;
    } else if (node.height == kOpen) {
      fail("a value contains itself");
    } else if (node.size != 0) {
      visit.places += node.size;
      visit.height = std::max<std::uint16_t>(visit.height, node.height + 1);
    } else {
      nodes_[item].height = kOpen;
      visits.push_back({item});
    }
    if (visits.size() > kMostLevels || visits.back().height > kMostLevels) {
      fail("it is nested too deeply");
    }
  }
}

}  // namespace accelerate::detail
