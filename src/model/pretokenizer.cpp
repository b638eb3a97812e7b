// The kinds of pre_tokenizer, with the results of the reference package.
#include "model/pretokenizer.hpp"

#include <utility>

#include "model/json_fields.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

// The word pattern of GPT-2 (its encoder.py), which ByteLevel applies with use_regex.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr std::string_view kSupported =
    "supported are ByteLevel and a Sequence of Split, Digits and at its end ByteLevel";

std::vector<SplitPart> parts_between(const std::vector<TextRange>& matches, std::size_t size,
                                     bool invert) {
  std::vector<SplitPart> parts;
  parts.reserve(matches.size() * 2 + 1);
  std::size_t covered = 0;
  for (const TextRange& match : matches) {
    if (match.begin != covered) parts.push_back({{covered, match.begin}, invert});
    parts.push_back({match, !invert});
    covered = match.end;
  }
  if (covered != size) parts.push_back({{covered, size}, invert});
  return parts;
}

}  // namespace

std::vector<TextRange> apply_behavior(const std::vector<SplitPart>& parts, SplitBehavior behavior) {
  std::vector<TextRange> out;
  out.reserve(parts.size());
  bool previous = false;
  switch (behavior) {
    case SplitBehavior::kIsolated:
      for (const SplitPart& part : parts) out.push_back(part.range);
      break;
    case SplitBehavior::kRemoved:
      for (const SplitPart& part : parts) {
        if (!part.match) out.push_back(part.range);
      }
      break;
    case SplitBehavior::kContiguous:
      for (const SplitPart& part : parts) {
        const bool join = part.match == previous && !out.empty();
        if (join) out.back().end = part.range.end;
        if (!join) out.push_back(part.range);
        previous = part.match;
      }
      break;
    case SplitBehavior::kMergedWithPrevious:
      for (const SplitPart& part : parts) {
        const bool join = part.match && !previous && !out.empty();
        if (join) out.back().end = part.range.end;
        if (!join) out.push_back(part.range);
        previous = part.match;
      }
      break;
    case SplitBehavior::kMergedWithNext:
      for (std::size_t i = parts.size(); i-- > 0;) {
        const SplitPart& part = parts[i];
        const bool join = part.match && !previous && !out.empty();
        if (join) out.back().begin = part.range.begin;
        if (!join) out.push_back(part.range);
        previous = part.match;
      }
      for (std::size_t i = 0, j = out.size(); i + 1 < j; ++i, --j) std::swap(out[i], out[j - 1]);
      break;
  }
  return out;
}

Result<Pretokenizer> Pretokenizer::parse(const JsonValue* json, const std::string& source) {
  const std::string where = source + ": pre_tokenizer";
  if (json == nullptr || json->is_null()) {
    return Status(StatusCode::kUnsupported, where + " is absent; " + std::string(kSupported));
  }
  Pretokenizer out;
  REPLAYSSM_RETURN_IF_ERROR(out.add(*json, where));
  if (!out.byte_level_) {
    return Status(StatusCode::kUnsupported,
                  where + " has no ByteLevel; " + std::string(kSupported));
  }
  return out;
}

Result<Pretokenizer> Pretokenizer::from_pattern(std::string_view pattern) {
  Result<Regex> regex = Regex::compile(pattern);
  if (!regex.ok()) return regex.status();
  Pretokenizer out;
  Step step;
  step.regex = std::move(regex).value();
  out.steps_.push_back(std::move(step));
  return out;
}

Status Pretokenizer::add(const JsonValue& json, const std::string& where) {
  JsonFields fields(json, where);
  const std::string type = fields.text({"type"});
  REPLAYSSM_RETURN_IF_ERROR(fields.status());
  if (byte_level_) {
    // What follows would see the mapped characters and not the text.
    return Status(StatusCode::kUnsupported,
                  where + ": " + in_quotes(type) + " after ByteLevel; " + std::string(kSupported));
  }
  if (type == "Sequence") {
    const JsonValue* list = fields.get({"pretokenizers"});
    if (list == nullptr || list->as_array() == nullptr) {
      return Status(StatusCode::kInvalidArgument,
                    where + ": pretokenizers must be a list, given " + JsonValue::describe(list));
    }
    for (const JsonValue& element : *list->as_array()) {
      REPLAYSSM_RETURN_IF_ERROR(add(element, where));
    }
    return {};
  }
  if (type == "Split") return add_split(json, where);
  if (type == "Digits") {
    Result<Regex> regex = Regex::compile(R"(\p{N})");
    if (!regex.ok()) return regex.status();
    Step step;
    step.regex = std::move(regex).value();
    const bool individual = fields.boolean_or({"individual_digits"}, false);
    step.behavior = individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous;
    steps_.push_back(std::move(step));
    return fields.status();
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    Step space;
    space.kind = StepKind::kPrefixSpace;
    if (fields.boolean_or({"add_prefix_space"}, true)) steps_.push_back(space);
    if (fields.boolean_or({"use_regex"}, true)) {
      Result<Regex> regex = Regex::compile(kGpt2Pattern);
      if (!regex.ok()) return regex.status();
      Step step;
      step.regex = std::move(regex).value();
      steps_.push_back(std::move(step));
    }
    return fields.status();
  }
  return Status(StatusCode::kUnsupported, where + ": type " + in_quotes(type) +
                                              " is not supported; " + std::string(kSupported));
}

Status Pretokenizer::add_split(const JsonValue& json, const std::string& where) {
  struct Spelling {
    std::string_view name;
    SplitBehavior behavior;
  };
  constexpr Spelling kSpellings[] = {{"Removed", SplitBehavior::kRemoved},
                                     {"Isolated", SplitBehavior::kIsolated},
                                     {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
                                     {"MergedWithNext", SplitBehavior::kMergedWithNext},
                                     {"Contiguous", SplitBehavior::kContiguous}};
  JsonFields fields(json, where + ": Split");
  Step step;
  step.invert = fields.boolean_or({"invert"}, false);
  const std::string behavior = fields.text({"behavior"});
  const JsonValue* pattern = fields.get({"pattern"});
  REPLAYSSM_RETURN_IF_ERROR(fields.status());
  const Spelling* known = nullptr;
  for (const Spelling& spelling : kSpellings) {
    if (spelling.name == behavior) known = &spelling;
  }
  if (known == nullptr) {
    return Status(StatusCode::kUnsupported,
                  where + ": Split behavior " + in_quotes(behavior) +
                      " is not supported; supported are Removed, Isolated, "
                      "MergedWithPrevious, MergedWithNext, Contiguous");
  }
  step.behavior = known->behavior;
  const JsonValue* regex = pattern == nullptr ? nullptr : pattern->find("Regex");
  const JsonValue* literal = pattern == nullptr ? nullptr : pattern->find("String");
  Result<Regex> compiled = Status(StatusCode::kInvalidArgument,
                                  "Split: pattern must be {\"Regex\": text} or {\"String\": text}");
  if (regex != nullptr && regex->as_string() != nullptr) {
    compiled = Regex::compile(*regex->as_string());
  } else if (literal != nullptr && literal->as_string() != nullptr) {
    compiled = Regex::literal(*literal->as_string());
  }
  if (!compiled.ok()) {
    return Status(compiled.status().code(), where + ": " + compiled.status().message());
  }
  step.regex = std::move(compiled).value();
  steps_.push_back(std::move(step));
  return {};
}

Status Pretokenizer::split(const Step& step, std::string_view word, PretokenizerScratch& scratch,
                           std::vector<std::string_view>& out) {
  if (step.kind == StepKind::kPrefixSpace) {
    if (word.front() != ' ') word = scratch.owned.emplace_back(" " + std::string(word));
    out.push_back(word);
    return {};
  }
  scratch.matches.clear();
  REPLAYSSM_RETURN_IF_ERROR(scratch.matcher.find_all(step.regex, word, scratch.matches));
  const std::vector<SplitPart> parts = parts_between(scratch.matches, word.size(), step.invert);
  for (const TextRange& range : apply_behavior(parts, step.behavior)) {
    if (range.begin < range.end) out.push_back(word.substr(range.begin, range.end - range.begin));
  }
  return {};
}

Status Pretokenizer::run(std::string_view text, PretokenizerScratch& scratch,
                         std::vector<std::string_view>& words) const {
  words.clear();
  scratch.owned.clear();
  if (text.empty()) return {};
  words.push_back(text);
  std::vector<std::string_view> next;
  for (const Step& step : steps_) {
    next.clear();
    for (const std::string_view word : words) {
      REPLAYSSM_RETURN_IF_ERROR(split(step, word, scratch, next));
    }
    words.swap(next);
  }
  return {};
}

}  // namespace replayssm::model
