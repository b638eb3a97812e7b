// JSON as an immutable tree, and the one place that parses it. The model files come from strangers:
// depth, number of values and duplicate keys are checked, and every access is by kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "replayssm/status.hpp"

namespace replayssm::model {

class JsonObject;

// One value. Whole numbers that fit 64 signed bits are kInteger, all others kReal.
class JsonValue {
 public:
  using Array = std::vector<JsonValue>;

  JsonValue();
  explicit JsonValue(bool value);
  explicit JsonValue(std::int64_t value);
  explicit JsonValue(double value);
  explicit JsonValue(std::string value);
  explicit JsonValue(Array value);
  explicit JsonValue(std::unique_ptr<JsonObject> value);
  JsonValue(JsonValue&&) noexcept;
  JsonValue& operator=(JsonValue&&) noexcept;
  JsonValue(const JsonValue&) = delete;
  JsonValue& operator=(const JsonValue&) = delete;
  ~JsonValue();

  // Null pointers where the value is of another kind.
  [[nodiscard]] bool is_null() const;
  [[nodiscard]] const bool* as_bool() const;
  [[nodiscard]] const std::int64_t* as_integer() const;
  [[nodiscard]] const double* as_real() const;
  [[nodiscard]] const std::string* as_string() const;
  [[nodiscard]] const Array* as_array() const;
  [[nodiscard]] const JsonObject* as_object() const;

  // The member `key` of an object; null where this is no object or has no such member.
  [[nodiscard]] const JsonValue* find(std::string_view key) const;

  // For messages: "null", "the number 3", "the text 'abc'", "a list of 3", "an object".
  [[nodiscard]] std::string describe() const;
  // The same of a member that may be absent: "nothing" for null.
  [[nodiscard]] static std::string describe(const JsonValue* value);

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, Array,
               std::unique_ptr<JsonObject>>
      value_;
};

// Members in the order of the file; keys are unique.
class JsonObject {
 public:
  struct Member {
    std::string key;
    JsonValue value;
  };

  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  // O(log n).
  [[nodiscard]] const JsonValue* find(std::string_view key) const;

 private:
  friend class JsonBuilder;
  std::vector<Member> members_;
  std::vector<std::uint32_t> by_key_;  // indices of members_ in the order of their keys
};

struct JsonLimits {
  // The literals NaN, Infinity and -Infinity, which Python writes and no standard allows.
  bool allow_nonfinite = false;
  std::size_t max_depth = 64;
  std::size_t max_values = 8'000'000;
};

// kDataLoss with one line that begins with `source` (a file name) where `text` is not JSON, repeats
// a key or passes a limit.
[[nodiscard]] Result<JsonValue> parse_json(std::string_view text, std::string_view source,
                                           const JsonLimits& limits = {});

}  // namespace replayssm::model
