#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace accelerate {

struct CsvOptions {
  /// Separates fields. Must not be a quote, a line ending or 0.
  char delimiter = ',';
  /// The first row names the columns. Otherwise they are named "0", "1" …
  bool has_header = true;
};

/// A column of strings, encoded as numbers.
struct Categories {
  /// kLong, one per row: an index into `names`.
  at::Tensor codes;
  /// The distinct values, in alphabetical order.
  std::vector<std::string> names;
};

/// A table in a CSV file, read as Python's csv module reads it (RFC 4180:
/// fields in double quotes may hold delimiters, newlines and doubled quotes).
/// It is UTF-8, with or without a byte order mark; lines end with LF, CR LF or
/// CR, and blank ones are skipped. The file is memory-mapped and its
/// rows are parsed when they are read; an index takes eight bytes of memory per
/// row. The file must not change meanwhile. Copies share the mapping. Safe to
/// read from several threads.
class ACCELERATE_API CsvFile {
 public:
  /// Throws Error if the file cannot be read, ConfigError naming the line if a
  /// row has more or fewer fields than the first, a quote is not closed, or the
  /// text is not UTF-8. Functions throw Error if the file has become shorter.
  explicit CsvFile(const std::string& path, const CsvOptions& options = {});

  /// Number of rows, without the header.
  [[nodiscard]] std::int64_t num_rows() const;
  /// Names of the columns; "0", "1", ... in a file without a header.
  [[nodiscard]] const std::vector<std::string>& columns() const;
  /// The fields of one row.
  [[nodiscard]] std::vector<std::string> row(std::int64_t index) const;
  /// [num_rows, columns.size()] of a floating-point or integer dtype, or kBool
  /// (0, 1, true, false). Spaces around a number are ignored. A missing value
  /// is NaN: an empty field, or one that pandas reads as missing (NA, N/A, NaN,
  /// null, NULL, None, <NA>, #N/A ...); for an integer dtype it is an error.
  /// Throws ConfigError naming line and column of a field that is not a number,
  /// or is too large for the dtype, and for a column that does not exist or
  /// whose name occurs twice.
  [[nodiscard]] at::Tensor numbers(
      const std::vector<std::string>& columns,
      at::ScalarType dtype = at::kFloat) const;
  /// The numbers of some rows, in the order given.
  [[nodiscard]] at::Tensor numbers(
      const std::vector<std::string>& columns,
      at::ScalarType dtype,
      std::span<const std::int64_t> rows) const;
  /// The fields of one column, as strings.
  [[nodiscard]] std::vector<std::string> texts(const std::string& column) const;
  /// The strings of a column, encoded as numbers.
  [[nodiscard]] Categories categories(const std::string& column) const;

 private:
  struct State;
  detail::KeptPtr<const State> state_;
};

struct CsvDatasetOptions {
  /// Columns of the two tensors of a sample. If `targets` is empty, a sample's
  /// second tensor has no values.
  std::vector<std::string> inputs = {};
  /// Columns of the second tensor.
  std::vector<std::string> targets = {};
  /// Dtype of the first tensor.
  at::ScalarType input_dtype = at::kFloat;
  /// Dtype of the second tensor.
  at::ScalarType target_dtype = at::kFloat;
  /// How the file is read.
  CsvOptions csv = {};
};

/// Rows of a CSV file of any size as samples: a batch is a tuple of [rows,
/// inputs] and [rows, targets]. A file that fits into memory is faster as a
/// TensorDataset of CsvFile::numbers.
class ACCELERATE_API CsvDataset {
 public:
  /// Throws like CsvFile, and for columns that do not exist.
  CsvDataset(const std::string& path, CsvDatasetOptions options);

  /// Number of samples: the rows of the file.
  [[nodiscard]] std::int64_t size() const { return file_.num_rows(); }
  /// The samples of some rows, as [rows, inputs] and [rows, targets].
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor> get_batch(
      std::span<const std::int64_t> indices) const;
  /// The file, for its columns and texts.
  [[nodiscard]] const CsvFile& file() const { return file_; }

 private:
  CsvFile file_;
  CsvDatasetOptions options_;
};

}  // namespace accelerate
