#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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

  /// Executes the operations of the input.
  class Machine;

  std::uint32_t add(const Node& node);
  std::uint32_t add_container(Kind kind, std::vector<std::uint32_t> items);
  std::uint32_t add_global(std::uint32_t module, std::uint32_t name);
  std::uint32_t add_call(std::uint32_t callee, std::uint32_t arguments);
  /// Appends to a container. `kind` is that of the container, if it is the
  /// result of a call.
  void
  append(std::uint32_t to, const std::vector<std::uint32_t>& items, Kind kind);
  void set_state(std::uint32_t object, std::uint32_t state);
  void charge(std::size_t bytes);
  void measure();
  void measure_from(std::uint32_t start, std::uint64_t most_places);
  [[noreturn]] void fail(const std::string& what) const;

  std::span<const std::byte> input_;
  std::string name_;
  std::size_t most_bytes_;
  std::size_t used_bytes_ = 0;
  std::size_t at_ = 0;
  std::uint32_t root_ = 0;
  std::vector<Node> nodes_;
  /// Bit that marks globals composed of two strings; the rest is an index into
  /// names_.
  static constexpr std::uint64_t kComposed = std::uint64_t{1} << 63U;
  std::vector<std::string> names_;
  /// The items of containers; for dicts, alternating keys and values.
  std::vector<std::vector<std::uint32_t>> containers_;
};

/// Whether the text of a global, whose module ends with a newline, is `name`,
/// "module name".
bool is_global(std::string_view text, std::string_view name);

}  // namespace accelerate::detail
