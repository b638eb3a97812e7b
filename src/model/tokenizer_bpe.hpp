// Byte-pair merging: from the bytes of a word to token ids, with a list of merges as in a
// tokenizer.json or by the ranks of a tiktoken file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/json_value.hpp"
#include "replayssm/status.hpp"

namespace replayssm::model {

// Byte-level vocabularies spell each byte as one printable character (the table of GPT-2's
// encoder.py): the printable ones of Latin-1 as themselves, the others from U+0100 upward.
void append_mapped_byte(std::string& out, std::uint8_t byte);

// The bytes that a token of that spelling stands for. A spelling with a character outside of the
// table stands for its own UTF-8.
[[nodiscard]] std::string unmapped_bytes(std::string_view spelling);

struct TextHash {
  using is_transparent = void;  // NOLINT(readability-identifier-naming): the standard's name
  [[nodiscard]] std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};
template <typename T>
using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

// Memory of one run; reused between words.
struct BpeScratch {
  struct Symbol {
    std::int32_t id;
    std::uint32_t previous;
    std::uint32_t next;
    bool alive;
  };
  struct Candidate {
    std::uint32_t rank;
    std::uint32_t position;
    std::int32_t merged;
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::string mapped;
  std::string pair;
};

class BytePairModel {
 public:
  // Moved only: ranked_ refers to keys of ids_.
  BytePairModel() = default;
  BytePairModel(BytePairModel&&) noexcept = default;
  BytePairModel& operator=(BytePairModel&&) noexcept = default;
  BytePairModel(const BytePairModel&) = delete;
  BytePairModel& operator=(const BytePairModel&) = delete;
  ~BytePairModel() = default;

  // `json` is the member model of a tokenizer.json, of type BPE. kUnsupported by name for dropout,
  // continuing_subword_prefix, end_of_word_suffix and, where single bytes are missing in the
  // vocabulary, byte_fallback.
  [[nodiscard]] static Result<BytePairModel> parse(const JsonValue* json,
                                                   const std::string& source);

  // A vocabulary without a list of merges: `tokens` are bytes, an index is both id and rank. Of all
  // neighbours whose bytes together are a token, those of the lowest rank are merged first; a word
  // that is a token is that token (PyPI's `tiktoken`). kInvalidArgument where a token is empty, is
  // there twice or is longer than kMaxRankTokenBytes, and where one of the 256 bytes is none.
  [[nodiscard]] static Result<BytePairModel> from_ranks(const std::vector<std::string>& tokens,
                                                        const std::string& source);

  // Appends the tokens of `word`, any bytes fewer than 2^31. A byte that the vocabulary lacks
  // becomes the unknown token if there is one and nothing otherwise, as in the reference package.
  // O(n log n).
  void encode(std::string_view word, BpeScratch& scratch, std::vector<std::int32_t>& ids) const;

  // Number of tokens; ids may leave gaps.
  [[nodiscard]] std::size_t token_count() const { return ids_.size(); }
  [[nodiscard]] const TextMap<std::int32_t>& ids() const { return ids_; }
  [[nodiscard]] std::optional<std::int32_t> token_id(std::string_view spelling) const;

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t merged;
  };
  [[nodiscard]] Status read_vocabulary(const JsonValue& json, const std::string& where);
  [[nodiscard]] Status read_merges(const JsonValue& json, const std::string& where);
  [[nodiscard]] Status add_merge(std::string_view left, std::string_view right, std::size_t rank,
                                 const std::string& where);
  [[nodiscard]] std::optional<Merge> find_merge(std::int32_t left, std::int32_t right,
                                                std::string& pair) const;
  void start_symbols(std::string_view word, BpeScratch& scratch) const;
  void push_candidate(BpeScratch& scratch, std::uint32_t position) const;

  TextMap<std::int32_t> ids_;  // by spelling
  std::unordered_map<std::uint64_t, Merge> merges_;
  // By id, the keys of ids_, which stay in place when the map moves; empty with a list of merges.
  std::vector<std::string_view> ranked_;
  std::size_t longest_ranked_ = 0;
  std::array<std::int32_t, 256> byte_ids_{};  // -1 where the vocabulary lacks the byte
  std::int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace replayssm::model
