// PCRE2 behind Regex and RegexMatcher.
#include "model/regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <utility>

#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::size_t kMaxPatternBytes = 20'000;
// Steps of one search. A sane pattern needs a few a character; a hostile one would never end.
constexpr std::uint32_t kMatchLimit = 20'000'000;
constexpr std::uint32_t kHeapLimitKib = 256 * 1024;
constexpr std::size_t kJitStackStart = 64 * 1024;
constexpr std::size_t kJitStackMax = 32 * 1024 * 1024;

struct ReleasePcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Pcre2Ptr = std::unique_ptr<T, ReleasePcre2>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

Status no_memory() { return Status(StatusCode::kResourceExhausted, "regex: out of memory"); }

Result<Pcre2Ptr<pcre2_code>> compile_code(std::string_view pattern, std::string_view shown,
                                          std::uint32_t options) {
  if (pattern.size() > kMaxPatternBytes) {
    return Status(StatusCode::kUnsupported, "regex " + in_quotes(shown) + ": at most " +
                                                std::to_string(kMaxPatternBytes) +
                                                " bytes are supported");
  }
  const Pcre2Ptr<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  if (context == nullptr) return no_memory();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  Pcre2Ptr<pcre2_code> code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                                          pattern.size(), options | PCRE2_UTF, &error, &at,
                                          context.get()));
  if (code == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "regex " + in_quotes(shown) + ": " + message_of(error));
  }
  // Without JIT support the interpreter gives the same matches, slower.
  static_cast<void>(pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE));
  return code;
}

}  // namespace

struct Regex::Code {
  Pcre2Ptr<pcre2_code> code;
};

Result<Regex> Regex::compile(std::string_view pattern) {
  const Result<std::string> translated = translate_pattern(pattern);
  if (!translated.ok()) return translated.status();
  // Ruby syntax: ^ and $ always match at lines.
  Result<Pcre2Ptr<pcre2_code>> code =
      compile_code(*translated, pattern, PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
  if (!code.ok()) return code.status();
  Regex regex;
  regex.code_ = std::make_shared<const Code>(Code{std::move(code).value()});
  return regex;
}

Result<Regex> Regex::literal(std::string_view text) {
  if (text.empty()) return Status(StatusCode::kInvalidArgument, "an empty text cannot be searched");
  Result<Pcre2Ptr<pcre2_code>> code = compile_code(text, text, PCRE2_LITERAL);
  if (!code.ok()) return code.status();
  Regex regex;
  regex.code_ = std::make_shared<const Code>(Code{std::move(code).value()});
  return regex;
}

struct RegexMatcher::Scratch {
  Pcre2Ptr<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};
  Pcre2Ptr<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Pcre2Ptr<pcre2_jit_stack> stack{pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)};
};

RegexMatcher::RegexMatcher() : scratch_(std::make_unique<Scratch>()) {
  if (scratch_->context == nullptr) return;
  pcre2_set_match_limit(scratch_->context.get(), kMatchLimit);
  pcre2_set_heap_limit(scratch_->context.get(), kHeapLimitKib);
  if (scratch_->stack != nullptr) {
    pcre2_jit_stack_assign(scratch_->context.get(), nullptr, scratch_->stack.get());
  }
}
RegexMatcher::~RegexMatcher() = default;
RegexMatcher::RegexMatcher(RegexMatcher&&) noexcept = default;
RegexMatcher& RegexMatcher::operator=(RegexMatcher&&) noexcept = default;

Status RegexMatcher::find_all(const Regex& regex, std::string_view text,
                              std::vector<TextRange>& matches) {
  if (scratch_->data == nullptr || scratch_->context == nullptr) return no_memory();
  const pcre2_code* code = regex.code_->code.get();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch_->data.get());
  std::size_t from = 0;
  bool any = false;
  std::size_t last_end = 0;
  while (from <= text.size()) {
    int found = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK,
                            scratch_->data.get(), scratch_->context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
      found = pcre2_match(code, subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          scratch_->data.get(), scratch_->context.get());
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    // Zero: the pattern has groups, for which there is no room and no use.
    if (found < 0) {
      return Status(StatusCode::kResourceExhausted,
                    "the split pattern gave up on this text: " + message_of(found));
    }
    const std::size_t begin = range[0];
    const std::size_t end = range[1];
    if (begin == end && any && end == last_end) {
      if (from == text.size()) break;
      from += utf8_step(text.substr(from)).length;
      continue;
    }
    matches.push_back({begin, end});
    any = true;
    last_end = end;
    from = end;
  }
  return {};
}

}  // namespace replayssm::model
