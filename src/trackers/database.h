#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

struct sqlite3;

namespace accelerate::detail {

/// A value of SQLite: null, whole, real or text.
using DatabaseValue =
    std::variant<std::monostate, std::int64_t, double, std::string>;
using DatabaseRow = std::vector<DatabaseValue>;

/// A SQLite file. Functions throw Error naming it and SQLite's reason; other
/// programs that write it are waited for, up to half a minute.
class Database {
 public:
  /// Makes the file, and its directory, if it is missing.
  explicit Database(std::filesystem::path path);
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  /// Runs statements that have no values and whose rows do not matter.
  void run(const std::string& statements);
  /// Runs a statement with a value for each `?`, and returns its rows.
  std::vector<DatabaseRow> query(
      std::string_view statement,
      const DatabaseRow& values = {});
  /// The first value of the first row as text; nothing if there is no row, or
  /// it is null.
  std::optional<std::string> text(
      std::string_view statement,
      const DatabaseRow& values = {});
  [[nodiscard]] std::int64_t last_id() const;
  [[nodiscard]] bool has_table(const std::string& name);
  [[nodiscard]] bool has_column(
      const std::string& table,
      const std::string& column);
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail() const;

  std::filesystem::path path_;
  sqlite3* database_ = nullptr;
};

/// Writes between construction and commit() happen together, or not at all.
class DatabaseTransaction {
 public:
  explicit DatabaseTransaction(Database& database);
  DatabaseTransaction(const DatabaseTransaction&) = delete;
  DatabaseTransaction& operator=(const DatabaseTransaction&) = delete;
  ~DatabaseTransaction();
  void commit();

 private:
  Database& database_;
  bool is_open_ = true;
};

}  // namespace accelerate::detail
