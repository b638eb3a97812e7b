// Reads the members of a JSON object with their types and ranges; the first fault is kept.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/json_value.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

struct IntegerRange {
  std::int64_t low;
  std::int64_t high;
};

struct RealRange {
  double low;
  double high;
};

// The number that `value` is: an integer, a real, or the object {"__float__": "Infinity"} (or
// "-Infinity", "NaN") that newer versions of transformers write where JSON has no literal. Absent
// otherwise.
[[nodiscard]] std::optional<double> number_of(const JsonValue& value);

// Every getter takes the spellings of one field: the first that is present and not null counts.
// After a fault the getters return the fallback (or zero) and status() says what was required and
// given, so that a caller reads all fields first and checks once.
class JsonFields {
 public:
  using Names = std::initializer_list<std::string_view>;

  // `where` opens each message, for example "config.json". `value` must outlive the reader.
  JsonFields(const JsonValue& value, std::string where);

  [[nodiscard]] const Status& status() const { return status_; }
  // Keeps `message`, prefixed by `where`, unless a fault is kept already.
  void fail(StatusCode code, const std::string& message);

  // Null where no spelling is present with a value other than null.
  [[nodiscard]] const JsonValue* get(Names names) const;

  [[nodiscard]] std::int64_t integer(Names names, IntegerRange range);
  [[nodiscard]] std::int64_t integer_or(Names names, IntegerRange range, std::int64_t fallback);
  [[nodiscard]] std::optional<std::int64_t> optional_integer(Names names, IntegerRange range);
  [[nodiscard]] double real(Names names, RealRange range);
  [[nodiscard]] std::optional<double> optional_real(Names names, RealRange range);
  [[nodiscard]] bool boolean_or(Names names, bool fallback);
  [[nodiscard]] std::string text(Names names);
  [[nodiscard]] std::optional<std::string> optional_text(Names names);
  // A whole number or a list of them; empty where absent.
  [[nodiscard]] std::vector<std::int64_t> integers(Names names, IntegerRange range);

 private:
  struct Found {
    std::string_view name;
    const JsonValue* value = nullptr;
  };
  [[nodiscard]] Found find(Names names) const;
  void refuse(std::string_view name, const std::string& required, const JsonValue& given);
  void refuse_missing(Names names, const std::string& required);

  const JsonValue& value_;
  std::string where_;
  Status status_;
};

}  // namespace replayssm::model
