// Text to token ids and back, from a tokenizer.json with byte-level BPE or a tiktoken.model; the
// results are those of the PyPI packages `tokenizers` and `tiktoken`, token for token.
//
// Supported of tokenizer.json: model BPE; normalizer null, NFC or a Sequence of these;
// pre_tokenizer ByteLevel or a Sequence of Split, Digits and ByteLevel; added tokens with all their
// properties; post_processor null, ByteLevel, TemplateProcessing or a Sequence of these; decoder
// ByteLevel. Everything else is refused by name. The members truncation and padding are ignored, as
// transformers does when it encodes a prompt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "replayssm/status.hpp"

namespace replayssm::model {

class Tokenizer {
 public:
  // `json` is the text of a tokenizer.json; `source` opens each message. kDataLoss where it is no
  // JSON, kInvalidArgument where it contradicts itself, kUnsupported by name.
  [[nodiscard]] static Result<Tokenizer> parse(std::string_view json,
                                               std::string_view source = "tokenizer.json");
  // `ranks` is the text of a tiktoken.model: a token in base64, a space and its rank, which is its
  // id, on each line. `config` is the text of the tokenizer_config.json beside it, absent where
  // there is none: added_tokens_decoder names the ids behind the ranks, add_bos_token and
  // add_eos_token (by default false) put these around a text. The splitting rule is Kimi's.
  // kDataLoss where a line is not so or `config` is no JSON, kInvalidArgument where a rank, token
  // or single byte is missing or there twice, or there are too many or too long tokens.
  [[nodiscard]] static Result<Tokenizer> parse_tiktoken(
      std::string_view ranks, std::optional<std::string_view> config,
      std::string_view ranks_source = "tiktoken.model",
      std::string_view config_source = "tokenizer_config.json");
  // `folder`/tokenizer.json, or where it is absent `folder`/tiktoken.model with its
  // tokenizer_config.json. kNotFound where both are.
  [[nodiscard]] static Result<Tokenizer> load(const std::filesystem::path& folder);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text`. With `add_special_tokens` the post_processor's template (bos, eos) is put
  // around it. Text that spells an added token becomes that token. kInvalidArgument where `text` is
  // not well-formed UTF-8 (the message says where; nothing is replaced silently) or passes 2^30
  // bytes; kResourceExhausted where a split pattern backtracks without end. May be called by
  // several threads.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view text,
                                                         bool add_special_tokens = true) const;

  // The text of `ids`; bytes that are not UTF-8 become U+FFFD. Ids without a token give nothing.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids,
                                   bool skip_special_tokens = true) const;

  // The bytes that a token adds to a text; a piece of a character is legal. Empty for ids without a
  // token.
  [[nodiscard]] std::string_view token_bytes(std::int32_t id) const;

  // One more than the largest id. A model may have more rows than this, never fewer.
  [[nodiscard]] std::int32_t vocab_size() const;

  // The id of the token with this spelling in the file, for example "<s>".
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view spelling) const;
  // True for added tokens that are marked special.
  [[nodiscard]] bool is_special(std::int32_t id) const;

 private:
  struct State;
  [[nodiscard]] static Result<Tokenizer> load_tiktoken(const std::filesystem::path& folder);
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Decodes a text token by token. The pieces joined, with finish() at the end, equal decode() of all
// ids.
class TokenStream {
 public:
  // `tokenizer` must outlive the stream.
  explicit TokenStream(const Tokenizer& tokenizer, bool skip_special_tokens = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special_tokens) {}

  // The text that is complete with this token: a character whose last bytes are still to come is
  // held back (three bytes at most), bytes that can never become UTF-8 are U+FFFD.
  [[nodiscard]] std::string push(std::int32_t id);
  // What is held back, as U+FFFD; the stream is empty afterwards.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;
};

// Ids by role, from the names in a folder's tokenizer_config.json.
struct SpecialTokens {
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::optional<std::int32_t> pad;
  std::optional<std::int32_t> unknown;
};

// bos_token, eos_token, pad_token and unk_token of the text of a tokenizer_config.json: a text, or
// an object with `content`. A name that the tokenizer lacks is kInvalidArgument.
[[nodiscard]] Result<SpecialTokens> parse_special_tokens(
    std::string_view json, const Tokenizer& tokenizer,
    std::string_view source = "tokenizer_config.json");
// The file of a folder; all absent where there is no such file.
[[nodiscard]] Result<SpecialTokens> load_special_tokens(const std::filesystem::path& folder,
                                                        const Tokenizer& tokenizer);

}  // namespace replayssm::model
