#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trackers/tracker_patience.h"

struct sqlite3;

namespace accelerate::detail {

/// A SQLite value: null, integer, real or text.
using DatabaseValue =
    std::variant<std::monostate, std::int64_t, double, std::string>;
using DatabaseRow = std::vector<DatabaseValue>;

/// A SQLite file. Functions throw Error naming the file and SQLite's reason,
/// and wait up to half a minute, if there is that much patience, for other
/// programs that are writing it.
class Database {
 public:
  /// Creates the file and its directory if they are missing. Throws ConfigError
  /// if it cannot be opened, and Error if the path is not a regular file.
  explicit Database(
      std::filesystem::path path,
      std::shared_ptr<const TrackerPatience> patience =
          std::make_shared<TrackerPatience>());
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;
  ~Database();

  /// Runs statements without parameters, discarding their rows.
  void run(const std::string& statements);
  /// Runs a statement with a value for each `?`, and returns its rows.
  std::vector<DatabaseRow> query(
      std::string_view statement,
      const DatabaseRow& values = {});
  /// The first value of the first row as text; nothing if there is no row, or
  /// the value is null.
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
  bool wait_for_others(int num_waits);

  std::filesystem::path path_;
  std::shared_ptr<const TrackerPatience> patience_;
  TrackerPatience::Clock::time_point waiting_since_;
  sqlite3* database_ = nullptr;
};

/// Writes between construction and commit() happen atomically.
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
