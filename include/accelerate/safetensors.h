#pragma once

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Tensors in files of the safetensors format, without LibTorch.
namespace accelerate::safetensors {

/// The type of a tensor's elements. Names are those of the format: BOOL, a byte
/// per element; U8, U16, U32 and U64, unsigned; I8, I16, I32 and I64, signed;
/// F16, BF16, F32 and F64; C64, two F32; and numbers in fewer bits by those of
/// exponent and mantissa: F8_E5M2, F8_E4M3, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ,
/// F6_E2M3, F6_E3M2 and F4.
enum class Dtype {
  BOOL,
  /// 4 and 6 bits per element, packed; the bits of a tensor fill complete
  /// bytes.
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64,
};

/// "F32" and so on.
ACCELERATE_API std::string_view name_of(Dtype dtype);
/// Returns std::nullopt for an unknown name; names are upper case.
ACCELERATE_API std::optional<Dtype> parse_dtype(std::string_view name);
/// Number of bits of an element.
ACCELERATE_API int bits_of(Dtype dtype);

/// Sizes along all dimensions; empty for a single element.
using Shape = std::vector<std::uint64_t>;

/// Number of bytes of a contiguous tensor of this shape. std::nullopt if the
/// number does not fit into 64 bits, or elements do not fill complete bytes.
ACCELERATE_API std::optional<std::uint64_t> bytes_of(
    Dtype dtype,
    const Shape& shape);

/// The entry of a tensor in a file's header.
struct TensorInfo {
  /// Type of its elements.
  Dtype dtype = Dtype::F32;
  /// An empty shape has one element.
  Shape shape = {};
  /// Offsets in the data, which begins after the header.
  std::uint64_t begin = 0;
  /// One past its last byte.
  std::uint64_t end = 0;

  /// Number of bytes in the file.
  [[nodiscard]] std::uint64_t num_bytes() const { return end - begin; }
};

/// The contents of a file before its data.
struct Header {
  /// The tensors by name.
  std::map<std::string, TensorInfo> tensors;
  /// Strings of the writer, such as {"format", "pt"}.
  std::map<std::string, std::string> metadata;
  /// True if the file has metadata, which may be empty.
  bool has_metadata = false;
  /// Offset in the file at which the data begins.
  std::uint64_t data_begin = 0;
};

/// The names of the tensors in the order of the data.
ACCELERATE_API std::vector<std::string> names_in_order(const Header& header);

/// Longer headers are rejected.
inline constexpr std::uint64_t kMostHeaderBytes = 100'000'000;

/// Reads the header of a file of `file_size` bytes. `start` holds the beginning
/// of the file, at least the header, as far as the file goes. Throws
/// CheckpointError unless the file is valid: the header is one JSON object of
/// known fields, each once, and the tensors cover the data without holes or
/// overlaps, as the reference reader demands. Unlike the reference reader, also
/// rejects duplicate names, unknown fields, which might change what the bytes
/// mean, and shapes of more than 64 dimensions. `name` is used in messages.
ACCELERATE_API Header parse_header(
    std::span<const std::byte> start,
    std::uint64_t file_size,
    const std::string& name);

/// A slice of a tensor: its beginning and size in each dimension.
struct Box {
  /// Index of its first element.
  Shape begin;
  /// Number of elements.
  Shape size;
};

/// A file of tensors, memory-mapped: nothing is read until asked for. The file
/// must not be shortened meanwhile. Safe to read from several threads.
class ACCELERATE_API Reader {
 public:
  /// Throws Error if the file cannot be read, CheckpointError if it is invalid.
  explicit Reader(const std::filesystem::path& path);
  Reader(Reader&&) noexcept;
  Reader& operator=(Reader&&) noexcept;
  ~Reader();

  /// The file.
  [[nodiscard]] const std::filesystem::path& path() const;
  /// Its header.
  [[nodiscard]] const Header& header() const;
  /// Whether the file has a tensor of this name.
  [[nodiscard]] bool contains(const std::string& name) const;
  /// Throws CheckpointError for a name that is not in the file, naming the
  /// nearest.
  [[nodiscard]] const TensorInfo& info(const std::string& name) const;
  /// The tensor's bytes in the mapping, little-endian, possibly unaligned;
  /// valid as long as the reader.
  [[nodiscard]] std::span<const std::byte> bytes(const std::string& name) const;
  /// Copies a slice of a tensor to `out` in row-major order, touching only
  /// those pages of the file. Throws CheckpointError if the box is not inside
  /// the tensor, `out` has another size, or elements are smaller than a byte.
  void read(const std::string& name, const Box& box, std::span<std::byte> out)
      const;

 private:
  struct State;
  accelerate::detail::MovedCheck<std::unique_ptr<State>, "Reader"> state_;
};

/// A tensor to be written.
struct Declaration {
  /// Its name in the file.
  std::string name;
  /// Type of its elements.
  Dtype dtype = Dtype::F32;
  /// An empty shape has one element.
  Shape shape;
};

/// Lays out a file: begin and end of each tensor, in the order of the reference
/// writer (the widest elements first, then by name), which aligns all data.
/// Throws CheckpointError for duplicate names, the name "__metadata__",
/// impossible sizes and more than 64 dimensions.
ACCELERATE_API Header lay_out(
    const std::vector<Declaration>& tensors,
    std::map<std::string, std::string> metadata = {});

/// The bytes before the data: the header's length and the header, padded with
/// spaces to a multiple of eight. Equal headers give equal bytes.
ACCELERATE_API std::string header_bytes(const Header& header);

/// Writes a file from beginning to end in bounded memory: all tensors are
/// declared first, then given in pieces of any size, in the order of the data.
/// The file appears under its name, replacing another, once it is complete.
class ACCELERATE_API Writer {
 public:
  /// Throws Error if the file cannot be written, and like lay_out().
  Writer(
      const std::filesystem::path& path,
      const std::vector<Declaration>& tensors,
      std::map<std::string, std::string> metadata = {});
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  /// Removes an unfinished file.
  ~Writer();

  /// The layout; the order of `begin` is that of writing.
  [[nodiscard]] const Header& header() const;
  /// Names in the order in which their data must come.
  [[nodiscard]] const std::vector<std::string>& order() const;
  /// Writes the next bytes of the data. Throws Error if they cannot be written,
  /// CheckpointError if they exceed what was declared.
  void write(std::span<const std::byte> bytes);
  /// Makes the file durable and gives it its name; call it once all data is
  /// written. Throws CheckpointError if some is missing or it was called
  /// before, Error if it cannot be written.
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accelerate::safetensors
