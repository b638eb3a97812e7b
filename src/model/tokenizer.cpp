// Encoding, decoding and streams. Reading the file is in tokenizer_load.cpp.
#include "model/tokenizer.hpp"

#include <utility>

#include "model/tokenizer_limits.hpp"
#include "model/tokenizer_normalizer.hpp"
#include "model/tokenizer_state.hpp"
#include "model/utf8.hpp"

namespace replayssm::model {
namespace {

constexpr std::size_t kCachedWords = 1 << 16;
constexpr std::size_t kCachedWordBytes = 64;  // longer words seldom come back

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

namespace {

// One call of encode.
template <typename State>
class Encoding {
 public:
  explicit Encoding(const State& state)
      : state_(state), cache_lock_(state.cache.mutex, std::try_to_lock) {}

  Status add_text(std::string_view text) {
    std::vector<TextPiece> pieces;
    REPLAYSSM_RETURN_IF_ERROR(state_.added.split(text, false, scratch_.matcher, pieces));
    for (const TextPiece& piece : pieces) {
      const std::string_view part =
          text.substr(piece.range.begin, piece.range.end - piece.range.begin);
      if (piece.id >= 0) {
        ids_.push_back(piece.id);
      } else if (state_.nfc) {
        const Result<std::string> normal = normalize_nfc(part);
        if (!normal.ok()) return normal.status();
        REPLAYSSM_RETURN_IF_ERROR(add_normalized(*normal));
      } else {
        REPLAYSSM_RETURN_IF_ERROR(add_normalized(part));
      }
    }
    return {};
  }

  [[nodiscard]] std::vector<std::int32_t> take() { return std::move(ids_); }

 private:
  Status add_normalized(std::string_view text) {
    std::vector<TextPiece> pieces;
    REPLAYSSM_RETURN_IF_ERROR(state_.added.split(text, true, scratch_.matcher, pieces));
    for (const TextPiece& piece : pieces) {
      if (piece.id >= 0) {
        ids_.push_back(piece.id);
        continue;
      }
      const std::string_view part =
          text.substr(piece.range.begin, piece.range.end - piece.range.begin);
      REPLAYSSM_RETURN_IF_ERROR(state_.pretokenizer.run(part, scratch_, words_));
      for (const std::string_view word : words_) add_word(word);
    }
    return {};
  }

  void add_word(std::string_view word) {
    const bool cached = cache_lock_.owns_lock() && word.size() <= kCachedWordBytes;
    if (cached) {
      const auto known = state_.cache.words.find(word);
      if (known != state_.cache.words.end()) {
        ids_.insert(ids_.end(), known->second.begin(), known->second.end());
        return;
      }
    }
    const auto before = static_cast<std::ptrdiff_t>(ids_.size());
    state_.model.encode(word, bpe_, ids_);
    if (cached && state_.cache.words.size() < kCachedWords) {
      state_.cache.words.emplace(word,
                                 std::vector<std::int32_t>(ids_.begin() + before, ids_.end()));
    }
  }

  const State& state_;
  std::unique_lock<std::mutex> cache_lock_;
  PretokenizerScratch scratch_;
  BpeScratch bpe_;
  std::vector<std::string_view> words_;
  std::vector<std::int32_t> ids_;
};

}  // namespace

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text,
                                                    bool add_special_tokens) const {
  if (text.size() > kMaxTextBytes) {
    return Status(StatusCode::kInvalidArgument, "a text may have at most " +
                                                    std::to_string(kMaxTextBytes) +
                                                    " bytes, given " + std::to_string(text.size()));
  }
  if (const std::size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
    return Status(StatusCode::kInvalidArgument,
                  "a text must be UTF-8; byte " + std::to_string(at) + " begins something else");
  }
  Encoding<State> encoding(*state_);
  REPLAYSSM_RETURN_IF_ERROR(encoding.add_text(text));
  std::vector<std::int32_t> body = encoding.take();
  std::vector<std::int32_t> ids;
  for (const std::int32_t id : state_->special_template) {
    if (id == State::kTextPlace) {
      ids.insert(ids.end(), body.begin(), body.end());
    } else if (add_special_tokens) {
      ids.push_back(id);
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special_tokens) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!skip_special_tokens || !is_special(id)) bytes += token_bytes(id);
  }
  std::string text;
  append_lossy_utf8(text, bytes);
  return text;
}

std::string_view Tokenizer::token_bytes(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id < 0 || index >= state_->bytes.size() ? std::string_view() : state_->bytes[index];
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(state_->bytes.size());
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view spelling) const {
  const auto at = state_->added_ids.find(spelling);
  if (at != state_->added_ids.end()) return at->second;
  return state_->model.token_id(spelling);
}

bool Tokenizer::is_special(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id >= 0 && index < state_->special.size() && state_->special[index];
}

std::string TokenStream::push(std::int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  held_ += tokenizer_->token_bytes(id);
  std::string text;
  std::string_view rest = held_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    append_lossy_utf8(text, rest.substr(0, step.length));
    rest.remove_prefix(step.length);
  }
  held_ = std::string(rest);
  return text;
}

std::string TokenStream::finish() {
  std::string text;
  append_lossy_utf8(text, held_);
  held_.clear();
  return text;
}

}  // namespace replayssm::model
