// JsonValue's accessors. Parsing is in json_parse.cpp, the only file that sees the JSON library.
#include "model/json_value.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "model/utf8.hpp"

namespace replayssm::model {

JsonValue::JsonValue() = default;
JsonValue::JsonValue(bool value) : value_(value) {}
JsonValue::JsonValue(std::int64_t value) : value_(value) {}
JsonValue::JsonValue(double value) : value_(value) {}
JsonValue::JsonValue(std::string value) : value_(std::move(value)) {}
JsonValue::JsonValue(Array value) : value_(std::move(value)) {}
JsonValue::JsonValue(std::unique_ptr<JsonObject> value) : value_(std::move(value)) {}
JsonValue::JsonValue(JsonValue&&) noexcept = default;
JsonValue& JsonValue::operator=(JsonValue&&) noexcept = default;
JsonValue::~JsonValue() = default;

bool JsonValue::is_null() const { return std::holds_alternative<std::monostate>(value_); }
const bool* JsonValue::as_bool() const { return std::get_if<bool>(&value_); }
const std::int64_t* JsonValue::as_integer() const { return std::get_if<std::int64_t>(&value_); }
const double* JsonValue::as_real() const { return std::get_if<double>(&value_); }
const std::string* JsonValue::as_string() const { return std::get_if<std::string>(&value_); }
const JsonValue::Array* JsonValue::as_array() const { return std::get_if<Array>(&value_); }
const JsonObject* JsonValue::as_object() const {
  const auto* object = std::get_if<std::unique_ptr<JsonObject>>(&value_);
  return object == nullptr ? nullptr : object->get();
}

const JsonValue* JsonValue::find(std::string_view key) const {
  const JsonObject* object = as_object();
  return object == nullptr ? nullptr : object->find(key);
}

std::string JsonValue::describe() const {
  if (is_null()) return "null";
  if (const bool* flag = as_bool()) return *flag ? "true" : "false";
  if (const std::int64_t* number = as_integer()) return "the number " + std::to_string(*number);
  if (const double* number = as_real()) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%g", *number);
    return std::string("the number ") + text.data();
  }
  if (const std::string* text = as_string()) return "the text " + in_quotes(*text);
  if (const Array* array = as_array()) return "a list of " + std::to_string(array->size());
  return "an object";
}

std::string JsonValue::describe(const JsonValue* value) {
  return value == nullptr ? "nothing" : value->describe();
}

const JsonValue* JsonObject::find(std::string_view key) const {
  const auto at = std::lower_bound(by_key_.begin(), by_key_.end(), key,
                                   [this](std::uint32_t index, std::string_view wanted) {
                                     return members_[index].key < wanted;
                                   });
  if (at == by_key_.end() || members_[*at].key != key) return nullptr;
  return &members_[*at].value;
}

}  // namespace replayssm::model
