#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accelerate/error.h>

#include "base/text/text.h"
#include "format/torch/pickle_reader.h"

// How operations change the tree.

namespace accelerate::detail {

namespace {

bool has_items(Pickle::Kind kind) {
  using Kind = Pickle::Kind;
  return kind == Kind::list || kind == Kind::tuple || kind == Kind::dict ||
      kind == Kind::set || kind == Kind::call || kind == Kind::persistent;
}

}  // namespace

std::vector<Pickle::Value> Pickle::all(Kind kind) const {
  std::vector<Value> found;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].kind == kind) {
      found.push_back(Value(*this, static_cast<std::uint32_t>(i)));
    }
  }
  return found;
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

std::uint32_t Pickle::add(const Node& node) {
  charge(sizeof(Node) + sizeof(std::uint32_t));
  nodes_.push_back(node);
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::uint32_t Pickle::add_container(
    Kind kind,
    std::vector<std::uint32_t> items) {
  if (kind == Kind::dict && items.size() % 2 != 0) fail("a key has no value");
  charge(sizeof items + items.size() * sizeof(std::uint32_t));
  containers_.push_back(std::move(items));
  return add({kind, 0, containers_.size() - 1});
}

void Pickle::append(
    std::uint32_t to,
    const std::vector<std::uint32_t>& items,
    Kind kind) {
  Node target = nodes_[to];
  // Items added to the result of a call (an OrderedDict, for example) are kept
  // as its state.
  if (target.kind == Kind::call) {
    const std::uint64_t call = target.payload;
    if (containers_[call].size() < 3) {
      const std::uint32_t added = add_container(kind, {});
      containers_[call].push_back(added);
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

std::uint32_t Pickle::add_global(
    std::uint32_t module_node,
    std::uint32_t name_node) {
  const Node& module = nodes_[module_node];
  const Node& name = nodes_[name_node];
  if (name.kind != Kind::text || module.kind != Kind::text) {
    fail("the name of a class is not a string");
  }
  const auto text_of = [&](const Node& node) {
    return std::string_view(
        reinterpret_cast<const char*>(input_.data()) + node.payload, node.size);
  };
  charge(sizeof(std::string) + module.size + name.size + 1);
  names_.push_back(format("{}\n{}", text_of(module), text_of(name)));
  return add(
      {Kind::global,
       static_cast<std::uint32_t>(names_.back().size()),
       kComposed | (names_.size() - 1)});
}

std::uint32_t Pickle::add_call(std::uint32_t callee, std::uint32_t arguments) {
  // Python may call what another call returned.
  const Kind called = nodes_[callee].kind;
  if ((called != Kind::global && called != Kind::call) ||
      nodes_[arguments].kind != Kind::tuple) {
    fail("a call is not of a class or function");
  }
  return add_container(Kind::call, {callee, arguments});
}

// An OrderedDict has entries, even if there are none.
void Pickle::set_state(std::uint32_t object, std::uint32_t state) {
  if (nodes_[object].kind != Kind::call) {
    fail("a state is set on a value that is not an object");
  }
  const std::uint64_t call = nodes_[object].payload;
  const bool is_empty_dict = containers_[call].size() < 3 &&
      Value(*this, object).is_call_of("collections OrderedDict");
  if (is_empty_dict) {
    const std::uint32_t entries = add_container(Kind::dict, {});
    containers_[call].push_back(entries);
  }
  if (containers_[call].size() > 3) fail("an object has two states");
  charge(sizeof state);
  containers_[call].push_back(state);
}

void Pickle::measure() {
  // Files written by Python rarely refer to a value twice.
  constexpr std::uint64_t kLeast = 100'000, kPlacesPerByte = 16;
  const std::uint64_t most = std::min<std::uint64_t>(
      kLeast + kPlacesPerByte * input_.size(), 0xF000'0000U);
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (has_items(nodes_[i].kind) && nodes_[i].size == 0) {
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
    if (!has_items(node.kind)) {
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
