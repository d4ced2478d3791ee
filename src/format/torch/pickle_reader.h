#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace accelerate::detail {

/// A pickle's contents as a tree. Nothing is executed: calls of Python
/// functions remain descriptions of calls.
class Pickle {
 public:
  enum class Kind : std::uint8_t {
    none,
    boolean,
    /// A 64-bit integer.
    integer,
    /// A longer integer: its little-endian bytes.
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
    /// A call: item 0 is the callee, item 1 its arguments; item 2, if present,
    /// is what was added to the result: its entries (an OrderedDict's are a
    /// dict, a deque's a list), or its state; item 3 is the state of a result
    /// with entries.
    call,
    /// A reference outside the pickle: item 0 identifies it.
    persistent,
  };

  /// A node of the tree; valid as long as the pickle lives.
  class Value {
   public:
    [[nodiscard]] Kind kind() const;
    /// The value of boolean (0 or 1) and integer nodes. This and the accessors
    /// below throw CheckpointError for other kinds.
    [[nodiscard]] std::int64_t integer() const;
    /// The value of real and integer nodes.
    [[nodiscard]] double real() const;
    /// The bytes of text, bytes, long_integer and global nodes; a view of the
    /// input.
    [[nodiscard]] std::string_view text() const;
    /// The number of items of list, tuple, set, call and persistent nodes; for
    /// a dict, the number of pairs.
    [[nodiscard]] std::size_t size() const;
    [[nodiscard]] Value item(std::size_t index) const;
    /// A key of a dict, in insertion order.
    [[nodiscard]] Value key(std::size_t index) const;
    [[nodiscard]] Value value(std::size_t index) const;
    /// True for a call of this function or class.
    [[nodiscard]] bool is_call_of(std::string_view global) const;
    /// A dict, or what was added to the result of a call.
    [[nodiscard]] Value as_dict() const;

   private:
    friend class Pickle;
    Value(const Pickle& pickle, std::uint32_t node)
        : pickle_(&pickle), node_(node) {}
    [[noreturn]] void wrong(std::string_view wanted) const;

    const Pickle* pickle_;
    std::uint32_t node_;
  };

  /// Borrows `input`, one pickle of protocol 2 to 5. Throws CheckpointError if
  /// it is malformed, ends early, needs more than `most_bytes` of memory, has
  /// operations that only run code, or is not a tree of sensible depth and
  /// size: it may refer to a value twice, but visiting the entire tree must
  /// end. `name` is used in messages.
  Pickle(
      std::span<const std::byte> input,
      std::string name,
      std::size_t most_bytes);

  [[nodiscard]] Value root() const { return {*this, root_}; }
  /// Every node of this kind, in the order in which it was read.
  [[nodiscard]] std::vector<Value> all(Kind kind) const;
  /// Number of input bytes that the pickle took; others may follow.
  [[nodiscard]] std::size_t size() const { return at_; }

 private:
  /// Nodes take 16 bytes, so that a short operation costs little.
  struct Node {
    Node(Kind what, std::uint32_t its_size = 0, std::uint64_t its_payload = 0)
        : kind(what), size(its_size), payload(its_payload) {}
    Kind kind = Kind::none;
    /// Containers only: the number of levels below this one, once measured.
    std::uint16_t height = 0;
    /// For text, the number of bytes. For containers, the number of nodes in
    /// the subtree, including this one, once measured.
    std::uint32_t size = 0;
    std::uint64_t payload = 0;
  };

  void run();
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
  std::string_view take_line();
  std::uint32_t add(const Node& node);
  void push(const Node& node) { stack_.push_back(add(node)); }
  void push_text(Kind kind, std::uint64_t size);
  /// Reads an integer of `size` bytes.
  void push_long(std::uint64_t size);
  void push_real();
  void push_container(Kind kind, std::vector<std::uint32_t> items);
  void push_dict(std::vector<std::uint32_t> items);
  /// Takes a module and a name from the top of the stack.
  void push_global();
  /// Reads a module and a name, one line each.
  void push_global_in_lines();
  /// Takes a callee and its arguments from the top of the stack.
  void push_call();
  /// Gives the state on top of the stack to the object below it.
  void set_state();
  std::uint32_t pop();
  /// Pops `count` values; the last one returned was on top.
  std::vector<std::uint32_t> pop_several(std::size_t count);
  std::vector<std::uint32_t> pop_to_mark();
  /// Appends to the container on top of the stack. `kind` is that of the
  /// container, if it is the result of a call.
  void append(std::vector<std::uint32_t> items, Kind kind);
  /// Takes keyword arguments from the top of the stack, then makes a call.
  void push_call_with_keywords();
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
  /// Bit that marks globals composed of two strings; the rest is an index into
  /// names_.
  static constexpr std::uint64_t kComposed = std::uint64_t{1} << 63U;
  std::vector<std::string> names_;
  /// The items of containers; for dicts, alternating keys and values.
  std::vector<std::vector<std::uint32_t>> containers_;
  std::vector<std::uint32_t> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, std::uint32_t> memo_;
};

/// Whether the text of a global, whose module ends with a newline, is `name`,
/// "module name".
bool is_global(std::string_view text, std::string_view name);

}  // namespace accelerate::detail
