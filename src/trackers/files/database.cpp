#include "trackers/files/database.h"

#include <chrono>
#include <system_error>
#include <utility>

#include <sqlite3.h>

#include <accelerate/error.h>

#include "base/files/files.h"
#include "base/text/text.h"

namespace accelerate::detail {

namespace {

constexpr std::chrono::seconds kLongestWait(30);
constexpr std::chrono::milliseconds kPause(20);

struct BindValue {
  sqlite3_stmt* statement;
  int index;
  int operator()(std::monostate) const {
    return sqlite3_bind_null(statement, index);
  }
  int operator()(std::int64_t value) const {
    return sqlite3_bind_int64(statement, index, value);
  }
  int operator()(double value) const {
    return sqlite3_bind_double(statement, index, value);
  }
  int operator()(const std::string& value) const {
    return sqlite3_bind_text64(
        statement,
        index,
        value.data(),
        value.size(),
        SQLITE_TRANSIENT,
        SQLITE_UTF8);
  }
};

DatabaseValue column_value(sqlite3_stmt* statement, int column) {
  switch (sqlite3_column_type(statement, column)) {
    case SQLITE_NULL:
      return std::monostate();
    case SQLITE_INTEGER:
      return std::int64_t{sqlite3_column_int64(statement, column)};
    case SQLITE_FLOAT:
      return sqlite3_column_double(statement, column);
    default:
      break;
  }
  const void* const bytes = sqlite3_column_blob(statement, column);
  return std::string(
      static_cast<const char*>(bytes),
      static_cast<std::size_t>(sqlite3_column_bytes(statement, column)));
}

}  // namespace

Database::Database(
    std::filesystem::path path,
    std::shared_ptr<const TrackerPatience> patience)
    : path_(std::move(path)), patience_(std::move(patience)) {
  std::error_code problem;
  std::filesystem::create_directories(directory_of(path_), problem);
  // SQLite would wait for a pipe.
  require_regular_or_missing(path_);
  if (sqlite3_open(path_.c_str(), &database_) != SQLITE_OK) {
    const std::string reason =
        database_ ? sqlite3_errmsg(database_) : "no memory";
    sqlite3_close(database_);
    throw ConfigError(format(
        "[trackers] cannot open the database {}: {}", path_.string(), reason));
  }
  sqlite3_busy_handler(
      database_,
      [](void* self, int num_waits) {
        return static_cast<Database*>(self)->wait_for_others(num_waits) ? 1 : 0;
      },
      this);
}

// Whether to try again.
bool Database::wait_for_others(int num_waits) {
  const auto now = TrackerPatience::Clock::now();
  if (num_waits == 0) waiting_since_ = now;
  return now - waiting_since_ < kLongestWait && patience_->pause(kPause);
}

Database::~Database() { sqlite3_close(database_); }

void Database::fail() const {
  throw Error(format(
      "[trackers] the database {}: {}",
      path_.string(),
      sqlite3_errmsg(database_)));
}

void Database::run(const std::string& statements) {
  if (sqlite3_exec(database_, statements.c_str(), nullptr, nullptr, nullptr) !=
      SQLITE_OK) {
    fail();
  }
}

std::vector<DatabaseRow> Database::query(
    std::string_view statement,
    const DatabaseRow& values) {
  sqlite3_stmt* prepared = nullptr;
  if (sqlite3_prepare_v2(
          database_,
          statement.data(),
          static_cast<int>(statement.size()),
          &prepared,
          nullptr) != SQLITE_OK) {
    fail();
  }
  const std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> owner(
      prepared, &sqlite3_finalize);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const BindValue bind{prepared, static_cast<int>(i) + 1};
    if (std::visit(bind, values[i]) != SQLITE_OK) fail();
  }
  std::vector<DatabaseRow> rows;
  int found = 0;
  while ((found = sqlite3_step(prepared)) == SQLITE_ROW) {
    DatabaseRow row;
    for (int i = 0; i < sqlite3_column_count(prepared); ++i)
      row.push_back(column_value(prepared, i));
    rows.push_back(std::move(row));
  }
  if (found != SQLITE_DONE) fail();
  return rows;
}

std::optional<std::string> Database::text(
    std::string_view statement,
    const DatabaseRow& values) {
  const auto rows = query(statement, values);
  if (rows.empty()) return std::nullopt;
  const DatabaseValue& first = rows.front().at(0);
  if (const auto* const text = std::get_if<std::string>(&first)) return *text;
  if (const auto* const whole = std::get_if<std::int64_t>(&first))
    return std::to_string(*whole);
  return std::nullopt;
}

std::int64_t Database::last_id() const {
  return sqlite3_last_insert_rowid(database_);
}

bool Database::has_table(const std::string& name) {
  return !query("SELECT 1 FROM sqlite_master WHERE name = ?", {name}).empty();
}

bool Database::has_column(const std::string& table, const std::string& column) {
  return !query(
              "SELECT 1 FROM pragma_table_info(?) WHERE name = ?",
              {table, column})
              .empty();
}

DatabaseTransaction::DatabaseTransaction(Database& database)
    : database_(database) {
  database_.run("BEGIN IMMEDIATE");
}

DatabaseTransaction::~DatabaseTransaction() {
  if (!is_open_) return;
  try {
    database_.run("ROLLBACK");
  } catch (const Error&) {
    // SQLite has already rolled it back.
  }
}

void DatabaseTransaction::commit() {
  database_.run("COMMIT");
  is_open_ = false;
}

}  // namespace accelerate::detail
