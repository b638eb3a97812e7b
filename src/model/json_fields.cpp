// The getters of JsonFields.
#include "model/json_fields.hpp"

#include <array>
#include <cstdio>
#include <limits>
#include <utility>

namespace replayssm::model {
namespace {

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

std::string required_text(IntegerRange range) {
  return "a whole number from " + std::to_string(range.low) + " to " + std::to_string(range.high);
}

std::string required_text(RealRange range) {
  return "a number from " + number_text(range.low) + " to " + number_text(range.high);
}

std::optional<std::int64_t> integer_in(const JsonValue& value, IntegerRange range) {
  const std::int64_t* number = value.as_integer();
  if (number == nullptr || *number < range.low || *number > range.high) return std::nullopt;
  return *number;
}

std::optional<double> real_in(const JsonValue& value, RealRange range) {
  const std::optional<double> number = number_of(value);
  // Written so that NaN fails.
  if (!number || !(*number >= range.low && *number <= range.high)) return std::nullopt;
  return number;
}

}  // namespace

std::optional<double> number_of(const JsonValue& value) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (const std::int64_t* whole = value.as_integer()) return static_cast<double>(*whole);
  if (const double* real = value.as_real()) return *real;
  const JsonValue* spelled = value.find("__float__");
  const std::string* text = spelled == nullptr ? nullptr : spelled->as_string();
  if (text == nullptr) return std::nullopt;
  if (*text == "Infinity") return kInfinity;
  if (*text == "-Infinity") return -kInfinity;
  if (*text == "NaN") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

JsonFields::JsonFields(const JsonValue& value, std::string where)
    : value_(value), where_(std::move(where)) {
  if (value.as_object() == nullptr) {
    fail(StatusCode::kDataLoss, "an object is required, given " + value.describe());
  }
}

void JsonFields::fail(StatusCode code, const std::string& message) {
  if (status_.ok()) status_ = Status(code, where_ + ": " + message);
}

JsonFields::Found JsonFields::find(Names names) const {
  for (const std::string_view name : names) {
    const JsonValue* value = value_.find(name);
    if (value != nullptr && !value->is_null()) return {name, value};
  }
  return {};
}

void JsonFields::refuse(std::string_view name, const std::string& required,
                        const JsonValue& given) {
  fail(StatusCode::kInvalidArgument,
       std::string(name) + ": " + required + " is required, given " + given.describe());
}

void JsonFields::refuse_missing(Names names, const std::string& required) {
  std::string spellings;
  for (const std::string_view name : names) {
    if (!spellings.empty()) spellings += " or ";
    spellings += name;
  }
  fail(StatusCode::kInvalidArgument, spellings + " is missing; " + required + " is required");
}

const JsonValue* JsonFields::get(Names names) const { return find(names).value; }

std::int64_t JsonFields::integer(Names names, IntegerRange range) {
  if (find(names).value == nullptr) refuse_missing(names, required_text(range));
  return optional_integer(names, range).value_or(0);
}

std::int64_t JsonFields::integer_or(Names names, IntegerRange range, std::int64_t fallback) {
  return optional_integer(names, range).value_or(fallback);
}

std::optional<std::int64_t> JsonFields::optional_integer(Names names, IntegerRange range) {
  const Found found = find(names);
  if (found.value == nullptr) return std::nullopt;
  const std::optional<std::int64_t> number = integer_in(*found.value, range);
  if (!number) refuse(found.name, required_text(range), *found.value);
  return number;
}

double JsonFields::real(Names names, RealRange range) {
  if (find(names).value == nullptr) refuse_missing(names, required_text(range));
  return optional_real(names, range).value_or(0);
}

std::optional<double> JsonFields::optional_real(Names names, RealRange range) {
  const Found found = find(names);
  if (found.value == nullptr) return std::nullopt;
  const std::optional<double> number = real_in(*found.value, range);
  if (!number) refuse(found.name, required_text(range), *found.value);
  return number;
}

bool JsonFields::boolean_or(Names names, bool fallback) {
  const Found found = find(names);
  if (found.value == nullptr) return fallback;
  if (const bool* flag = found.value->as_bool()) return *flag;
  refuse(found.name, "true or false", *found.value);
  return fallback;
}

std::string JsonFields::text(Names names) {
  if (find(names).value == nullptr) refuse_missing(names, "a text");
  return optional_text(names).value_or("");
}

std::optional<std::string> JsonFields::optional_text(Names names) {
  const Found found = find(names);
  if (found.value == nullptr) return std::nullopt;
  if (const std::string* text = found.value->as_string()) return *text;
  refuse(found.name, "a text", *found.value);
  return std::nullopt;
}

std::vector<std::int64_t> JsonFields::integers(Names names, IntegerRange range) {
  std::vector<std::int64_t> numbers;
  const Found found = find(names);
  if (found.value == nullptr) return numbers;
  const JsonValue::Array* list = found.value->as_array();
  const std::size_t count = list == nullptr ? 1 : list->size();
  for (std::size_t i = 0; i < count; ++i) {
    const JsonValue& element = list == nullptr ? *found.value : (*list)[i];
    const std::optional<std::int64_t> number = integer_in(element, range);
    if (!number) {
      refuse(found.name, required_text(range) + " or a list of them", element);
      return {};
    }
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace replayssm::model
