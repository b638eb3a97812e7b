// Byte-pair merging: from the bytes of a word to token ids.
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
};

class BytePairModel {
 public:
  // `json` is the member model of a tokenizer.json, of type BPE. kUnsupported by name for dropout,
  // continuing_subword_prefix, end_of_word_suffix and, where single bytes are missing in the
  // vocabulary, byte_fallback.
  [[nodiscard]] static Result<BytePairModel> parse(const JsonValue* json,
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
  [[nodiscard]] const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void start_symbols(std::string_view word, BpeScratch& scratch) const;
  void push_candidate(BpeScratch& scratch, std::uint32_t position) const;

  TextMap<std::int32_t> ids_;  // by spelling
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::array<std::int32_t, 256> byte_ids_{};  // -1 where the vocabulary lacks the byte
  std::int32_t unknown_ = -1;
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace replayssm::model
