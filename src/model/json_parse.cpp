// Builds a JsonValue from text through the JSON library's event interface, which throws nothing.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/json_value.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

// A number that JSON cannot spell, put in the place of the `ordinal`-th null of the text.
struct Nonfinite {
  std::size_t ordinal;
  double value;
};

struct Literal {
  std::string_view spelling;
  double value;
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Literal kLiterals[] = {{"-Infinity", -kInfinity},
                                 {"Infinity", kInfinity},
                                 {"NaN", std::numeric_limits<double>::quiet_NaN()}};

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Replaces the literals outside of strings by null and remembers which nulls they are, so that the
// parser sees plain JSON and no text of the file can be mistaken for a literal.
std::string replace_nonfinite(std::string_view text, std::vector<Nonfinite>& found) {
  std::string out;
  out.reserve(text.size());
  std::size_t nulls = 0;
  bool in_string = false;
  std::size_t at = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\' && at + 1 < text.size()) out.push_back(text[at++]);
      if (c == '"') in_string = false;
      out.push_back(text[at++]);
      continue;
    }
    if (c == '"') in_string = true;
    const bool starts_word = at == 0 || !is_word(text[at - 1]);
    const std::string_view rest = text.substr(at);
    const Literal* literal = nullptr;
    if (starts_word && (c == '-' || c == 'I' || c == 'N')) {
      for (const Literal& candidate : kLiterals) {
        const std::size_t length = candidate.spelling.size();
        const bool ends = rest.size() == length || (rest.size() > length && !is_word(rest[length]));
        if (rest.substr(0, length) == candidate.spelling && ends) literal = &candidate;
      }
    }
    if (literal != nullptr) {
      found.push_back({nulls++, literal->value});
      out += "null";
      at += literal->spelling.size();
      continue;
    }
    if (c == 'n' && rest.substr(0, 4) == "null") ++nulls;
    out.push_back(c);
    ++at;
  }
  return out;
}

}  // namespace

// Receives the parser's events. A method that returns false ends the parse; error() says why.
class JsonBuilder {
 public:
  JsonBuilder(const JsonLimits& limits, const std::vector<Nonfinite>& nonfinite)
      : limits_(limits), nonfinite_(nonfinite) {}

  bool null() {
    const std::size_t ordinal = nulls_++;
    if (next_nonfinite_ < nonfinite_.size() && nonfinite_[next_nonfinite_].ordinal == ordinal) {
      return add(JsonValue(nonfinite_[next_nonfinite_++].value));
    }
    return add(JsonValue());
  }
  bool boolean(bool value) { return add(JsonValue(value)); }
  bool number_integer(std::int64_t value) { return add(JsonValue(value)); }
  bool number_unsigned(std::uint64_t value) {
    constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (value > kMax) return add(JsonValue(static_cast<double>(value)));
    return add(JsonValue(static_cast<std::int64_t>(value)));
  }
  bool number_float(double value, const std::string& /*text*/) { return add(JsonValue(value)); }
  bool string(std::string& value) { return add(JsonValue(std::move(value))); }
  bool binary(nlohmann::json::binary_t& /*value*/) { return fail("binary values are not JSON"); }

  bool start_object(std::size_t /*elements*/) { return open(true); }
  bool start_array(std::size_t /*elements*/) { return open(false); }
  bool key(std::string& name) {
    open_.back().keys.push_back(std::move(name));
    return true;
  }
  bool end_array() {
    JsonValue::Array values = std::move(open_.back().values);
    open_.pop_back();
    return place(JsonValue(std::move(values)));
  }
  bool end_object() {
    Level level = std::move(open_.back());
    open_.pop_back();
    auto object = std::make_unique<JsonObject>();
    const std::size_t count = level.keys.size();
    object->members_.reserve(count);
    object->by_key_.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      JsonObject::Member member;
      member.key = std::move(level.keys[i]);
      member.value = std::move(level.values[i]);
      object->members_.push_back(std::move(member));
      object->by_key_.push_back(static_cast<std::uint32_t>(i));
    }
    const auto& members = object->members_;
    std::sort(
        object->by_key_.begin(), object->by_key_.end(),
        [&members](std::uint32_t a, std::uint32_t b) { return members[a].key < members[b].key; });
    const auto twin = std::adjacent_find(
        object->by_key_.begin(), object->by_key_.end(),
        [&members](std::uint32_t a, std::uint32_t b) { return members[a].key == members[b].key; });
    if (twin != object->by_key_.end()) {
      return fail("the key " + in_quotes(members[*twin].key) + " appears twice in one object");
    }
    return place(JsonValue(std::move(object)));
  }
  template <typename Exception>
  bool parse_error(std::size_t position, const std::string& last_token,
                   const Exception& /*error*/) {
    return fail("malformed JSON at byte " + std::to_string(position) + ", near " +
                in_quotes(last_token));
  }

  [[nodiscard]] const std::string& error() const { return error_; }
  [[nodiscard]] JsonValue take() { return std::move(root_); }

 private:
  struct Level {
    bool is_object = false;
    std::vector<std::string> keys;
    JsonValue::Array values;
  };

  bool fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }
  bool count() {
    if (++values_ <= limits_.max_values) return true;
    return fail("more than " + std::to_string(limits_.max_values) + " values");
  }
  bool open(bool is_object) {
    if (!count()) return false;
    if (open_.size() >= limits_.max_depth) {
      return fail("nested deeper than " + std::to_string(limits_.max_depth) + " levels");
    }
    open_.emplace_back();
    open_.back().is_object = is_object;
    return true;
  }
  bool add(JsonValue value) { return count() && place(std::move(value)); }
  bool place(JsonValue value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else {
      open_.back().values.push_back(std::move(value));
    }
    return true;
  }

  const JsonLimits& limits_;
  const std::vector<Nonfinite>& nonfinite_;
  std::size_t next_nonfinite_ = 0;
  std::size_t nulls_ = 0;
  std::size_t values_ = 0;
  std::vector<Level> open_;
  JsonValue root_;
  std::string error_;
};

Result<JsonValue> parse_json(std::string_view text, std::string_view source,
                             const JsonLimits& limits) {
  const auto fail = [source](const std::string& message) {
    return Status(StatusCode::kDataLoss, std::string(source) + ": " + message);
  };
  // The parser takes a NUL for the end of its input, whatever follows.
  if (const std::size_t at = text.find('\0'); at != std::string_view::npos) {
    return fail("malformed JSON: a NUL at byte " + std::to_string(at));
  }
  if (const std::size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    return fail("not UTF-8 at byte " + std::to_string(at));
  }
  std::vector<Nonfinite> nonfinite;
  std::string plain;
  if (limits.allow_nonfinite) {
    plain = replace_nonfinite(text, nonfinite);
    text = plain;
  }
  JsonBuilder builder(limits, nonfinite);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return fail(builder.error().empty() ? "malformed JSON" : builder.error());
  }
  return builder.take();
}

}  // namespace replayssm::model
