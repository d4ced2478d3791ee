#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace accelerate::detail {

/// What a pickle describes, as a tree to look at. Nothing is executed: calls of
/// Python functions stay descriptions of calls.
class Pickle {
 public:
  enum class Kind : std::uint8_t {
    none,
    boolean,
    /// A whole number of 64 bits.
    integer,
    /// A longer one: its little-endian bytes.
    long_integer,
    real,
    text,
    bytes,
    list,
    tuple,
    dict,
    set,
    /// The name of a class or function: "module name".
    global,
    /// A call: item 0 is what is called, 1 its arguments; 2, if it is there,
    /// what was put into the result, as a dict (an OrderedDict's entries), or
    /// else the state that it was given.
    call,
    /// A reference outside the pickle: item 0 says which.
    persistent,
  };

  /// A place in the tree; valid as long as the pickle.
  class Value {
   public:
    [[nodiscard]] Kind kind() const;
    /// Of boolean (0 or 1) and integer. All of these throw CheckpointError for
    /// another kind.
    [[nodiscard]] std::int64_t integer() const;
    /// Of real and integer.
    [[nodiscard]] double real() const;
    /// Of text, bytes, long_integer and global; views the input.
    [[nodiscard]] std::string_view text() const;
    /// Of list, tuple, set, call and persistent; a dict counts its pairs.
    [[nodiscard]] std::size_t size() const;
    [[nodiscard]] Value item(std::size_t index) const;
    /// Of dict, in the order in which they were put in.
    [[nodiscard]] Value key(std::size_t index) const;
    [[nodiscard]] Value value(std::size_t index) const;
    /// A call of this function or class.
    [[nodiscard]] bool is_call_of(std::string_view global) const;
    /// A dict, or what was put into a call's result.
    [[nodiscard]] Value as_dict() const;

   private:
    friend class Pickle;
    Value(const Pickle& pickle, std::uint32_t node)
        : pickle_(&pickle), node_(node) {}
    [[noreturn]] void wrong(std::string_view wanted) const;

    const Pickle* pickle_;
    std::uint32_t node_;
  };

  /// Borrows `input`, one pickle of protocol 2 to 5. Throws CheckpointError if it
  /// is malformed, ends before its end, needs more than `most_bytes` of memory,
  /// has operations that only run code, or is no tree of a sensible depth and
  /// size: it may name a thing twice, but not so that looking at each place of
  /// the tree never ends. `name`: what to call it in messages.
  Pickle(
      std::span<const std::byte> input,
      std::string name,
      std::size_t most_bytes);

  [[nodiscard]] Value root() const { return {*this, root_}; }
  /// Every place of this kind, in the order in which they were read.
  [[nodiscard]] std::vector<Value> all(Kind kind) const;
  /// Bytes of the input that the pickle took: others may follow.
  [[nodiscard]] std::size_t size() const { return at_; }

 private:
  /// 16 bytes each, so that a short operation costs little.
  struct Node {
    Node(Kind what, std::uint32_t its_size = 0, std::uint64_t its_payload = 0)
        : kind(what), size(its_size), payload(its_payload) {}
    Kind kind = Kind::none;
    /// Of containers: how many levels are below, once measured.
    std::uint16_t height = 0;
    /// Of texts: their bytes. Of containers: the places of the tree below and
    /// including this one, once measured.
    std::uint32_t size = 0;
    std::uint64_t payload = 0;
  };

  void run();
  void step(unsigned char operation);
  template <class Number>
  Number take();
  std::string_view take_bytes(std::uint64_t size);
  std::string_view take_line();
  std::uint32_t add(const Node& node);
  void push(const Node& node) { stack_.push_back(add(node)); }
  /// Of a module and a name on top of the stack.
  void push_global();
  void push_text(Kind kind, std::uint64_t size);
  void push_container(Kind kind, std::vector<std::uint32_t> items);
  std::uint32_t pop();
  std::vector<std::uint32_t> pop_to_mark();
  /// To what is on top of the stack.
  void append(std::vector<std::uint32_t> items);
  void remember(std::uint64_t key);
  void recall(std::uint64_t key);
  void charge(std::size_t bytes);
  void measure();
  void measure_from(std::uint32_t start, std::uint64_t most_places);
  [[nodiscard]] static bool is_container(Kind kind);
  [[noreturn]] void fail(const std::string& what) const;

  std::span<const std::byte> input_;
  std::string name_;
  std::size_t most_bytes_;
  std::size_t used_bytes_ = 0;
  std::size_t at_ = 0;
  bool has_stopped_ = false;
  std::uint32_t root_ = 0;
  std::vector<Node> nodes_;
  /// Of globals put together from two texts, whose nodes have this bit and an
  /// index here.
  static constexpr std::uint64_t kComposed = std::uint64_t{1} << 63U;
  std::vector<std::string> names_;
  /// Of containers: their items; of dicts, keys and values in turn.
  std::vector<std::vector<std::uint32_t>> containers_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, std::uint32_t> memo_;
};

}  // namespace accelerate::detail
