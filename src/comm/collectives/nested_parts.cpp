#include <accelerate/detail/nested_parts.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/Functions.h>

#include <accelerate/error.h>

#include "base/text/text.h"

namespace accelerate::detail {

namespace {

template <class Number>
std::string shortest(Number number) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

// The place of a leaf; a value visited alone has none.
std::string place_text(const std::string& place) {
  return place.empty() ? "" : format(" at {}", place);
}

std::string bytes_of(const NestedLeaf& leaf) {
  if (leaf.operations->to_bytes == nullptr) {
    throw ConfigError(format(
        "[nested] the items of the list{} cannot be compared or sent: define "
        "object_to_bytes() and object_from_bytes() for their type "
        "(accelerate/objects.h)",
        place_text(leaf.place)));
  }
  return leaf.operations->to_bytes(leaf.object);
}

std::string kind_of(const NestedLeaf& leaf) {
  return leaf.operations->text != nullptr
      ? leaf.operations->text(leaf.object)
      : format("a list of {} items", leaf.operations->size(leaf.object));
}

std::int64_t rows_or_none(const NestedParts& parts) {
  return rows_of(parts).value_or(-1);
}

[[noreturn]] void throw_other_structure() {
  throw ConfigError(
      "[nested] concatenate must get values with the same tensors in the same "
      "places, but got none, or values of different structure");
}

bool is_same_kind(
    const std::vector<NestedLeaf>& mine,
    const std::vector<NestedLeaf>& others) {
  return std::ranges::equal(
      mine, others, [](const NestedLeaf& a, const NestedLeaf& b) {
        return a.operations == b.operations;
      });
}

bool has_same_structure(const NestedParts& a, const NestedParts& b) {
  return a.tensors.size() == b.tensors.size() && a.structure == b.structure &&
      is_same_kind(a.lists, b.lists) && is_same_kind(a.values, b.values);
}

// Throws unless the leaf is the same in all; `leaves_of` chooses the list of
// leaves.
template <class LeavesOf>
void require_equal(
    const std::vector<NestedParts>& all,
    const LeavesOf& leaves_of,
    std::string_view subject,
    std::string_view advice) {
  const std::vector<NestedLeaf>& first = leaves_of(all.front());
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::string expected = bytes_of(first[i]);
    for (const NestedParts& parts : all) {
      const NestedLeaf& other = leaves_of(parts)[i];
      if (bytes_of(other) == expected) continue;
      throw ConfigError(format(
          "{} differ{}: {} and {}; {}",
          subject,
          place_text(first[i].place),
          kind_of(first[i]),
          kind_of(other),
          advice));
    }
  }
}

void join_tensors(const std::vector<NestedParts>& all, std::int64_t dim) {
  for (std::size_t i = 0; i < all.front().tensors.size(); ++i) {
    std::vector<at::Tensor> column;
    for (const NestedParts& parts : all) column.push_back(*parts.tensors[i]);
    const auto num_defined = std::ranges::count_if(
        column, [](const at::Tensor& tensor) { return tensor.defined(); });
    if (num_defined == 0) continue;
    if (num_defined != static_cast<std::ptrdiff_t>(column.size()))
      throw_other_structure();
    *all.front().tensors[i] = at::cat(column, dim);
  }
}

// The most consecutive bytes of an object that lie in none of `visited`.
std::size_t largest_gap(
    const void* object,
    std::size_t size,
    std::span<const std::pair<const void*, std::size_t>> visited) {
  const auto begin = reinterpret_cast<std::uintptr_t>(object);
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> members;
  for (const auto& [member, length] : visited) {
    const auto at = reinterpret_cast<std::uintptr_t>(member);
    if (at >= begin && at < begin + size) members.emplace_back(at, at + length);
  }
  std::ranges::sort(members);
  std::uintptr_t end = begin;
  std::uintptr_t largest = 0;
  for (const auto& [from, to] : members) {
    if (from > end) largest = std::max(largest, from - end);
    end = std::max(end, to);
  }
  return std::max(largest, begin + size - std::min(end, begin + size));
}

}  // namespace

std::string text_of(double number) { return shortest(number); }
std::string text_of(std::int64_t number) { return shortest(number); }
std::string text_of(std::uint64_t number) { return shortest(number); }
std::string text_of(std::string_view string) {
  return format("\"{}\"", printable(string));
}

std::optional<std::int64_t> rows_of(const NestedParts& parts) {
  for (const at::Tensor* const tensor : parts.tensors) {
    if (tensor->defined() && tensor->dim() > 0) return tensor->size(0);
  }
  if (parts.lists.empty()) return std::nullopt;
  const NestedLeaf& list = parts.lists.front();
  return list.operations->size(list.object);
}

void require_rows(
    std::string_view function,
    const NestedParts& parts,
    std::int64_t rows,
    bool checks_tensors) {
  const auto refuse = [&](const std::string& place, const std::string& what) {
    throw ConfigError(format(
        "{} takes values whose tensors and lists all have one row per sample, "
        "but beside {} rows there is {}{}; put what belongs to no sample into "
        "a std::array, a number or a string",
        function,
        rows,
        what,
        place_text(place)));
  };
  for (const NestedLeaf& list : parts.lists) {
    if (list.operations->size(list.object) != rows)
      refuse(list.place, kind_of(list));
  }
  if (!checks_tensors) return;
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    const at::Tensor& tensor = *parts.tensors[i];
    if (!tensor.defined()) continue;
    if (tensor.dim() == 0 || tensor.size(0) != rows) {
      refuse(parts.places[i], format("a tensor of shape {}", tensor.sizes()));
    }
  }
}

void cut_rows(const NestedParts& parts, std::int64_t begin, std::int64_t end) {
  for (std::size_t i = 0; i < parts.tensors.size(); ++i) {
    at::Tensor& tensor = *parts.tensors[i];
    if (!tensor.defined()) continue;
    if (tensor.dim() == 0) {
      throw ConfigError(format(
          "[nested] tensors must have dimensions for slice_tensors, but one "
          "has none{}; pass batches",
          place_text(parts.places[i])));
    }
    tensor = tensor.slice(0, begin, end);
  }
  for (const NestedLeaf& list : parts.lists) {
    const std::int64_t size = list.operations->size(list.object);
    const auto place_in_list = [&](std::int64_t row) {
      return std::clamp<std::int64_t>(row < 0 ? row + size : row, 0, size);
    };
    const std::int64_t first = place_in_list(begin);
    const std::int64_t last = std::max(first, place_in_list(end));
    list.operations->resize(list.object, last);
    list.operations->drop_first(list.object, first);
  }
}

void require_same_parts(
    const std::vector<NestedParts>& all,
    bool compares_lists,
    std::string_view subject,
    std::string_view advice) {
  for (const NestedParts& parts : all) {
    if (!has_same_structure(all.front(), parts)) {
      throw ConfigError(
          format("{} differ in their keys or sizes; {}", subject, advice));
    }
  }
  require_equal(
      all,
      [](const NestedParts& parts) -> const auto& { return parts.values; },
      subject,
      advice);
  if (!compares_lists) return;
  require_equal(
      all,
      [](const NestedParts& parts) -> const auto& { return parts.lists; },
      subject,
      advice);
}

void join_parts(
    const std::vector<NestedParts>& all,
    const JoinPartsOptions& options) {
  if (all.empty()) throw_other_structure();
  for (const NestedParts& parts : all) {
    if (!has_same_structure(all.front(), parts)) throw_other_structure();
  }
  if (!options.keeps_first_values) {
    require_same_parts(
        all,
        /*compares_lists=*/options.dim != 0,
        "[nested] the values passed to concatenate",
        "it joins tensors, and along dimension 0 lists; make the rest equal");
  }
  if (options.dim == 0) {
    for (const NestedParts& parts : all) {
      require_rows("[nested] concatenate", parts, rows_or_none(parts), false);
    }
  }
  join_tensors(all, options.dim);
  if (options.dim != 0) return;
  for (std::size_t i = 0; i < all.front().lists.size(); ++i) {
    const NestedLeaf& list = all.front().lists[i];
    for (std::size_t k = 1; k < all.size(); ++k)
      list.operations->append(list.object, all[k].lists[i].object);
  }
}

std::string leaves_to_bytes(const NestedParts& parts) {
  std::vector<std::string> leaves;
  for (const NestedLeaf& list : parts.lists) leaves.push_back(bytes_of(list));
  for (const NestedLeaf& value : parts.values)
    leaves.push_back(bytes_of(value));
  return pack_bytes(leaves);
}

void leaves_from_bytes(std::string_view bytes, const NestedParts& parts) {
  const std::vector<std::string> leaves = unpack_bytes(bytes);
  const std::size_t expected = parts.lists.size() + parts.values.size();
  if (leaves.size() != expected) throw_wrong_size(leaves.size(), expected);
  std::size_t next = 0;
  for (const auto* const kind : {&parts.lists, &parts.values}) {
    for (const NestedLeaf& leaf : *kind)
      leaf.operations->from_bytes(leaves[next++], leaf.object);
  }
}

}  // namespace accelerate::detail

namespace accelerate {

void PartsVisitor::operator()(at::Tensor& tensor) {
  note(&tensor, sizeof tensor);
  parts_.tensors.push_back(&tensor);
  parts_.places.push_back(place_);
}

void PartsVisitor::note(const void* object, std::size_t size) {
  visited_.emplace_back(object, size);
}

void PartsVisitor::add_list(
    void* list,
    const detail::LeafOperations& operations) {
  parts_.lists.push_back({place_, list, &operations});
}

void PartsVisitor::add_value(
    void* value,
    const detail::LeafOperations& operations) {
  parts_.values.push_back({place_, value, &operations});
}

void PartsVisitor::enter(std::int64_t index) {
  entered_.emplace_back(place_.size(), visited_.size());
  place_ += detail::format("[{}]", index);
}

void PartsVisitor::enter(std::string_view key, bool is_key) {
  entered_.emplace_back(place_.size(), visited_.size());
  if (is_key) parts_.has_keys = true;
  place_ += detail::format("[{}]", detail::text_of(key));
}

detail::NestedParts PartsVisitor::take() { return std::move(parts_); }

void PartsVisitor::leave() {
  place_.resize(entered_.back().first);
  entered_.pop_back();
}

void PartsVisitor::find_gap(
    const void* object,
    std::size_t size,
    std::size_t alignment,
    std::size_t num_visited) {
  const std::size_t gap = detail::largest_gap(
      object, size, std::span(visited_).subspan(num_visited));
  if (gap < alignment || parts_.num_unvisited_bytes != 0) return;
  parts_.unvisited_place = place_;
  parts_.num_unvisited_bytes = gap;
}

const std::string& StructureReader::next() {
  if (next_ >= structure_.size())
    detail::throw_wrong_size(structure_.size(), next_ + 1);
  return structure_[next_++];
}

}  // namespace accelerate
