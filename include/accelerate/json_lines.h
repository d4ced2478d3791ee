#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accelerate/detail/handles.h>
#include <accelerate/export.h>

namespace accelerate {

/// One line of a JSON lines file: an object. Functions throw ConfigError naming
/// file, line and key if the key is missing or of another type.
class ACCELERATE_API JsonRecord {
 public:
  JsonRecord(JsonRecord&&) noexcept;
  JsonRecord& operator=(JsonRecord&&) noexcept;
  ~JsonRecord();

  /// Whether the record has this key, whatever its value.
  [[nodiscard]] bool contains(const std::string& key) const;
  /// A string.
  [[nodiscard]] std::string text(const std::string& key) const;
  /// An integer of 64 bits.
  [[nodiscard]] std::int64_t integer(const std::string& key) const;
  /// A number, as a double.
  [[nodiscard]] double number(const std::string& key) const;
  /// true or false.
  [[nodiscard]] bool boolean(const std::string& key) const;
  /// A list of strings.
  [[nodiscard]] std::vector<std::string> texts(const std::string& key) const;
  /// A number or boolean gives a 0-d tensor; lists of lists give more
  /// dimensions, with equal lengths within each. Numbers that the dtype cannot
  /// represent are errors: they are neither truncated nor made infinite.
  [[nodiscard]] at::Tensor tensor(
      const std::string& key,
      at::ScalarType dtype = at::kFloat) const;
  /// "data.jsonl:17", for your own messages.
  [[nodiscard]] std::string place() const;

 private:
  friend class JsonLinesFile;
  struct State;
  explicit JsonRecord(std::unique_ptr<State> state);
  detail::MovedCheck<std::unique_ptr<State>, "JsonRecord"> state_;
};

/// A file with one JSON object per line, as Python's json module writes and
/// reads them: UTF-8, with or without a byte order mark, with NaN, Infinity and
/// -Infinity as numbers; if an object has a key twice, the last one counts.
/// Lines end with LF, CR LF or CR; blank ones are skipped. The file is
/// memory-mapped and its lines are parsed when they are read; an index takes
/// eight bytes of memory per line. The file must not change meanwhile. Copies
/// share the mapping. Safe to read from several threads.
class ACCELERATE_API JsonLinesFile {
 public:
  /// Throws Error if the file cannot be read, ConfigError if it is UTF-16.
  /// Functions throw Error if the file has become shorter.
  explicit JsonLinesFile(const std::string& path);

  /// Number of lines that are not blank.
  [[nodiscard]] std::int64_t size() const;
  /// The text of a record, valid as long as a copy of the file lives.
  [[nodiscard]] std::string_view line(std::int64_t index) const;
  /// "data.jsonl:17", with the line number that an editor shows.
  [[nodiscard]] std::string place(std::int64_t index) const;
  /// Throws ConfigError naming file and line if the line is not a JSON object.
  [[nodiscard]] JsonRecord record(std::int64_t index) const;

 private:
  struct State;
  detail::KeptPtr<const State> state_;
};

/// Lines of a JSON lines file as samples, made by a function of the record:
///
///     JsonLinesDataset(path, [](const JsonRecord& r) {
///       return std::tuple{r.tensor("x"), r.tensor("y")};
///     })
template <class MakeSample>
  requires std::is_invocable_v<const MakeSample&, const JsonRecord&>
class JsonLinesDataset {
 public:
  JsonLinesDataset(const std::string& path, MakeSample make_sample)
      : file_(path), make_sample_(std::move(make_sample)) {}

  /// Number of records.
  [[nodiscard]] std::int64_t size() const { return file_.size(); }
  /// What `make_sample` makes of a record. Called by several threads if the
  /// loader has workers.
  [[nodiscard]] auto get(std::int64_t index) const {
    return make_sample_(file_.record(index));
  }
  /// The file that is read.
  [[nodiscard]] const JsonLinesFile& file() const { return file_; }

 private:
  JsonLinesFile file_;
  MakeSample make_sample_;
};

}  // namespace accelerate
